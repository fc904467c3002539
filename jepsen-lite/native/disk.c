// Disk: an LD_PRELOAD shim between a node and its data directory.
//
// It keeps a durable image of every file below JL_DISK_ROOT in JL_DISK_IMAGE: bytes get there only when they are
// synced, names at once, as on a journalling file system. A power cut is SIGKILL, and then the image in place of
// the directory. Faults are read from the first bytes of JL_DISK_CONTROL, which the harness maps as well; what was
// done is counted there, so that a fault that struck nobody shows.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NONE, ERROR, FULL, SLOW, LIE };

struct control {
  volatile uint32_t mode;      // One of the above.
  volatile uint32_t delay_ms;  // Of SLOW, before every sync.
  volatile uint64_t syncs;     // All that were asked for.
  volatile uint64_t struck;    // Calls that were refused, delayed or lied about.
};

static const char *root, *image;
static size_t root_length;
static struct control idle, *control = &idle;
static pthread_mutex_t mirroring = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name)                                          \
  ({                                                        \
    static typeof(&name) found;                             \
    if (!found) found = (typeof(&name))dlsym(RTLD_NEXT, #name); \
    found;                                                  \
  })

__attribute__((constructor)) static void begin(void) {
  root = getenv("JL_DISK_ROOT");
  image = getenv("JL_DISK_IMAGE");
  const char *path = getenv("JL_DISK_CONTROL");
  root_length = root ? strlen(root) : 0;
  if (!root || !path) return;
  int fd = REAL(open)(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) control = page;
  REAL(close)(fd);
}

static int is_ours(const char *path) {
  return root && path && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int path_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, 1023);
  if (length <= 0) return 0;
  path[length] = 0;
  return is_ours(path);
}

// Make the directories a path of the image lies in.
static void make_parents(char *path) {
  for (char *at = path + strlen(image) + 1; *at; at++)
    if (*at == '/') {
      *at = 0;
      mkdir(path, 0755);
      *at = '/';
    }
}

static void imaged(const char *path, char *out) { snprintf(out, 2047, "%s%s", image, path + root_length); }

// Where files have been written since they were last mirrored: most are appended to, but a write-ahead log writes
// over what it has used before. The lowest place of each file; one that has no slot is mirrored as a whole.
#define DIRTY_FILES 64
static struct {
  ino_t file;
  off_t from;
} dirty[DIRTY_FILES];
static pthread_mutex_t dirtying = PTHREAD_MUTEX_INITIALIZER;

static void written_at(int fd, off_t at) {
  struct stat now;
  if (!image || fstat(fd, &now) || !S_ISREG(now.st_mode)) return;
  pthread_mutex_lock(&dirtying);
  int slot = now.st_ino % DIRTY_FILES;
  if (dirty[slot].file != now.st_ino) {
    dirty[slot].from = dirty[slot].file ? 0 : at;
    dirty[slot].file = now.st_ino;
  } else if (at < dirty[slot].from) {
    dirty[slot].from = at;
  }
  pthread_mutex_unlock(&dirtying);
}

static off_t take_written(ino_t file, off_t otherwise) {
  pthread_mutex_lock(&dirtying);
  int slot = file % DIRTY_FILES;
  off_t from = otherwise;
  if (dirty[slot].file == file) {
    if (dirty[slot].from < from) from = dirty[slot].from;
    dirty[slot].file = 0;
  }
  pthread_mutex_unlock(&dirtying);
  return from;
}

// Bring one file of the image up to date.
static void mirror(int fd) {
  char path[1024], copy[2048];
  struct stat now, before;
  if (!image || !path_of(fd, path) || fstat(fd, &now) || !S_ISREG(now.st_mode)) return;
  imaged(path, copy);
  pthread_mutex_lock(&mirroring);
  make_parents(copy);
  int to = REAL(open)(copy, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  int from = REAL(open)(path, O_RDONLY | O_CLOEXEC);
  if (to >= 0 && from >= 0 && !fstat(to, &before)) {
    // All but the last block and what was written over is there already; small files are taken whole.
    off_t at = before.st_size <= now.st_size && before.st_size > 65536 ? before.st_size - 4096 : 0;
    at = take_written(now.st_ino, at);
    static char block[1 << 16];
    ssize_t length;
    while ((length = pread(from, block, sizeof block, at)) > 0) {
      if (REAL(pwrite)(to, block, length, at) < 0) break;
      at += length;
    }
    if (REAL(ftruncate)(to, now.st_size)) perror("jepsen-lite disk image");
  }
  if (to >= 0) REAL(close)(to);
  if (from >= 0) REAL(close)(from);
  pthread_mutex_unlock(&mirroring);
}

static int refused(uint32_t mode) {
  if (mode != ERROR && mode != FULL) return 0;
  __atomic_add_fetch(&control->struck, 1, __ATOMIC_RELAXED);
  errno = mode == ERROR ? EIO : ENOSPC;
  return 1;
}

static int synced(int fd, int data) {
  char path[1024];
  uint32_t mode = NONE;
  if (path_of(fd, path)) {
    mode = control->mode;
    __atomic_add_fetch(&control->syncs, 1, __ATOMIC_RELAXED);
    if (refused(mode)) return -1;
    if (mode == SLOW || mode == LIE) __atomic_add_fetch(&control->struck, 1, __ATOMIC_RELAXED);
    if (mode == SLOW) usleep(control->delay_ms * 1000);
  }
  int done = data ? REAL(fdatasync)(fd) : REAL(fsync)(fd);
  if (!done && mode != LIE) mirror(fd);
  return done;
}

int fsync(int fd) { return synced(fd, 0); }
int fdatasync(int fd) { return synced(fd, 1); }

// Syncs that the kernel is asked to do while the caller goes on (io_submit): a thread of ours does them, with every
// fault, and says when it is done as the kernel does. A sync that is delayed holds up nobody else.
#define AIO_MAX 64
enum { FREE, WAITING, DONE };
static struct aio_sync {
  int state;  // One of the above.
  uint64_t order;
  aio_context_t context;
  struct iocb *asked;
  uint64_t data;
  int fd, told, data_only;  // Both descriptors are our own: the caller may close its.
  int64_t result;
} aio_syncs[AIO_MAX];
static uint64_t aio_orders;
static int aio_begun;
static pthread_mutex_t aio_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t aio_asked = PTHREAD_COND_INITIALIZER;

static struct aio_sync *aio_oldest(aio_context_t context, int any_context, int state) {
  struct aio_sync *found = NULL;
  for (struct aio_sync *each = aio_syncs; each < aio_syncs + AIO_MAX; each++)
    if (each->state == state && (any_context || each->context == context) && (!found || each->order < found->order))
      found = each;
  return found;
}

static void *aio_work(void *nothing) {
  pthread_mutex_lock(&aio_lock);
  for (;;) {
    struct aio_sync *next = aio_oldest(0, 1, WAITING);
    if (!next) {
      pthread_cond_wait(&aio_asked, &aio_lock);
      continue;
    }
    pthread_mutex_unlock(&aio_lock);
    int64_t result = synced(next->fd, next->data_only) ? -errno : 0;
    pthread_mutex_lock(&aio_lock);
    next->result = result;
    next->state = DONE;
    uint64_t one = 1;
    if (next->told >= 0 && REAL(write)(next->told, &one, sizeof one) < 0) perror("jepsen-lite eventfd");
    REAL(close)(next->fd);
    if (next->told >= 0) REAL(close)(next->told);
  }
  return nothing;
}

static int aio_is_ours(const struct iocb *asked) {
  char path[1024];
  return (asked->aio_lio_opcode == IOCB_CMD_FDSYNC || asked->aio_lio_opcode == IOCB_CMD_FSYNC) &&
         path_of(asked->aio_fildes, path);
}

static int aio_begin(void) {
  pthread_t thread;
  sigset_t all, before;
  if (aio_begun) return 1;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  aio_begun = !pthread_create(&thread, NULL, aio_work, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return aio_begun;
}

static long aio_take(aio_context_t context, struct iocb *asked) {
  pthread_mutex_lock(&aio_lock);
  struct aio_sync *slot = aio_oldest(0, 1, FREE);
  int fd = slot && aio_begin() ? fcntl(asked->aio_fildes, F_DUPFD_CLOEXEC, 0) : -1;
  if (fd >= 0) {
    slot->state = WAITING;
    slot->order = ++aio_orders;
    slot->context = context;
    slot->asked = asked;
    slot->data = asked->aio_data;
    slot->fd = fd;
    slot->told = asked->aio_flags & IOCB_FLAG_RESFD ? fcntl(asked->aio_resfd, F_DUPFD_CLOEXEC, 0) : -1;
    slot->data_only = asked->aio_lio_opcode == IOCB_CMD_FDSYNC;
    pthread_cond_signal(&aio_asked);
  }
  pthread_mutex_unlock(&aio_lock);
  if (fd < 0) errno = EAGAIN;
  return fd < 0 ? -1 : 1;
}

static long aio_submit(aio_context_t context, long count, struct iocb **asked) {
  for (long begun = 0; begun < count; begun++) {
    long taken = aio_is_ours(asked[begun]) ? aio_take(context, asked[begun])
                                           : REAL(syscall)(SYS_io_submit, context, 1L, asked + begun);
    if (taken != 1) return begun ? begun : taken;
  }
  return count;
}

// What our thread has done comes first; who waits for it looks every millisecond.
static long aio_events(aio_context_t context, long least, long most, struct io_event *events, struct timespec *within) {
  int64_t left_ms = within ? within->tv_sec * 1000 + within->tv_nsec / 1000000 : INT64_MAX;
  struct aio_sync *each;
  long found = 0;
  pthread_mutex_lock(&aio_lock);
  while (least && left_ms-- > 0 && !aio_oldest(context, 0, DONE) && aio_oldest(context, 0, WAITING)) {
    pthread_mutex_unlock(&aio_lock);
    usleep(1000);
    pthread_mutex_lock(&aio_lock);
  }
  for (; found < most && (each = aio_oldest(context, 0, DONE)); found++) {
    events[found] = (struct io_event){.data = each->data, .obj = (uint64_t)each->asked, .res = each->result};
    each->state = FREE;
  }
  int waits = aio_oldest(context, 0, WAITING) != NULL;
  pthread_mutex_unlock(&aio_lock);
  return found || waits ? found : REAL(syscall)(SYS_io_getevents, context, least, most, events, within);
}

// As in the kernel, the end of a context waits for what is under way.
static long aio_destroy(aio_context_t context) {
  pthread_mutex_lock(&aio_lock);
  for (struct aio_sync *each; (each = aio_oldest(context, 0, WAITING)) || (each = aio_oldest(context, 0, DONE));) {
    if (each->state == DONE) {
      each->state = FREE;
      continue;
    }
    pthread_mutex_unlock(&aio_lock);
    usleep(1000);
    pthread_mutex_lock(&aio_lock);
  }
  pthread_mutex_unlock(&aio_lock);
  return REAL(syscall)(SYS_io_destroy, context);
}

long syscall(long number, ...) {
  va_list list;
  long given[6];
  va_start(list, number);
  for (int each = 0; each < 6; each++) given[each] = va_arg(list, long);
  va_end(list);
  if (root) switch (number) {
      case SYS_io_submit:
        return aio_submit(given[0], given[1], (struct iocb **)given[2]);
      case SYS_io_getevents:
        return aio_events(given[0], given[1], given[2], (struct io_event *)given[3], (struct timespec *)given[4]);
      case SYS_io_destroy:
        return aio_destroy(given[0]);
    }
  return REAL(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

// Writes fail like syncs do; reads never.
static int write_refused(int fd) {
  char path[1024];
  uint32_t mode = control->mode;
  return (mode == ERROR || mode == FULL) && path_of(fd, path) && refused(mode);
}

ssize_t write(int fd, const void *bytes, size_t count) {
  return write_refused(fd) ? -1 : REAL(write)(fd, bytes, count);
}
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
  written_at(fd, at);
  return write_refused(fd) ? -1 : REAL(pwrite)(fd, bytes, count, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
  written_at(fd, at);
  return write_refused(fd) ? -1 : REAL(pwrite64)(fd, bytes, count, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  return write_refused(fd) ? -1 : REAL(writev)(fd, parts, count);
}

// Names change in the image as they do in the directory.
static void both(const char *from, const char *to, int linked) {
  char old[2048], new[2048];
  if (!image || !is_ours(from) || !is_ours(to)) return;
  imaged(from, old);
  imaged(to, new);
  make_parents(new);
  if (linked)
    (void)!REAL(link)(old, new);
  else
    (void)!REAL(rename)(old, new);
}

int rename(const char *from, const char *to) {
  int done = REAL(rename)(from, to);
  if (!done) both(from, to, 0);
  return done;
}
int link(const char *from, const char *to) {
  int done = REAL(link)(from, to);
  if (!done) both(from, to, 1);
  return done;
}

static void gone(const char *path) {
  char copy[2048];
  if (!image || !is_ours(path)) return;
  imaged(path, copy);
  if (REAL(unlink)(copy)) REAL(rmdir)(copy);
}

int unlink(const char *path) {
  int done = REAL(unlink)(path);
  if (!done) gone(path);
  return done;
}
int rmdir(const char *path) {
  int done = REAL(rmdir)(path);
  if (!done) gone(path);
  return done;
}
int unlinkat(int directory, const char *name, int flags) {
  char path[2048];
  int known = 0;
  if (directory != AT_FDCWD && name[0] != '/') {
    char parent[1024];
    if ((known = path_of(directory, parent))) snprintf(path, sizeof path, "%s/%s", parent, name);
  } else {
    known = is_ours(name);
    snprintf(path, sizeof path, "%s", name);
  }
  int done = REAL(unlinkat)(directory, name, flags);
  if (!done && known) gone(path);
  return done;
}
