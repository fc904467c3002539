// Clock: an LD_PRELOAD shim that lets a process's clocks run fast or slow, and its time of day jump.
//
// All clocks of a node, those that nobody sets too, are ahead by a skew that grows or shrinks from a moment on; the
// time of day is ahead by a jump as well. The harness writes rate, skew, moment and jump to JL_CLOCK_CONTROL under a
// sequence number that is odd meanwhile; looks at a clock that does not run true are counted there, so that a fault
// that struck nobody shows.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
  volatile uint64_t sequence;
  volatile double gain;      // What the skew gains in a second of true time, in seconds.
  volatile int64_t skew_ns;  // At the moment below.
  volatile int64_t since_ns; // True monotonic time.
  volatile uint64_t looks;   // While the gain is not 0.
  volatile int64_t jump_ns;  // Of the time of day alone.
};

static struct control idle, *control = &idle;

// The library has an older form of some of these too, which is not what programs call.
#define REAL(name)                                                                                     \
  ({                                                                                                   \
    static typeof(&name) found;                                                                        \
    if (!found) found = (typeof(&name))dlvsym(RTLD_NEXT, #name, "GLIBC_2.3.2");                        \
    if (!found) found = (typeof(&name))dlsym(RTLD_NEXT, #name);                                        \
    found;                                                                                             \
  })

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("JL_CLOCK_CONTROL");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) control = page;
  close(fd);
}

// How far a clock is ahead; the time of day by its jump too.
static int64_t ahead_ns(int of_day) {
  struct timespec now;
  uint64_t before;
  double gain;
  int64_t skew, since, jump;
  do {
    before = __atomic_load_n(&control->sequence, __ATOMIC_ACQUIRE);
    gain = control->gain;
    skew = control->skew_ns;
    since = control->since_ns;
    jump = control->jump_ns;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
  } while ((before & 1) || before != __atomic_load_n(&control->sequence, __ATOMIC_ACQUIRE));
  if (of_day) skew += jump;
  if (gain == 0) return skew;
  __atomic_add_fetch(&control->looks, 1, __ATOMIC_RELAXED);
  REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
  return skew + (int64_t)(gain * (double)(now.tv_sec * 1000000000LL + now.tv_nsec - since));
}

static struct timespec moved(const struct timespec *from, int64_t by_ns) {
  int64_t at = from->tv_sec * 1000000000LL + from->tv_nsec + by_ns;
  return (struct timespec){at / 1000000000, at % 1000000000};
}

static int is_of_day(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static int runs(clockid_t clock) {
  return is_of_day(clock) || clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME ||
         clock == CLOCK_MONOTONIC_COARSE;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int done = REAL(clock_gettime)(clock, now);
  if (!done && runs(clock)) *now = moved(now, ahead_ns(is_of_day(clock)));
  return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec at;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &at);
  *now = (struct timeval){at.tv_sec, at.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *out) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (out) *out = at.tv_sec;
  return at.tv_sec;
}

// Instants that a thread waits for were read off these clocks; the kernel goes by its own.
static struct timespec true_until(const struct timespec *until, int of_day) { return moved(until, -ahead_ns(of_day)); }

// A condition does not tell its clock; the machine has not been up for as long as since 1970.
static int looks_of_day(const struct timespec *until) { return until->tv_sec > 1000000000; }

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  struct timespec at = true_until(until, looks_of_day(until));
  return REAL(pthread_cond_timedwait)(condition, mutex, &at);
}
int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
  struct timespec at = true_until(until, is_of_day(clock));
  return REAL(pthread_cond_clockwait)(condition, mutex, clock, &at);
}
int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  struct timespec at = true_until(until, 1);
  return REAL(sem_timedwait)(semaphore, &at);
}
int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until) {
  struct timespec at = true_until(until, is_of_day(clock));
  return REAL(sem_clockwait)(semaphore, clock, &at);
}
