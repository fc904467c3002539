"""Kernel AIO: Linux syncs a file while the caller continues, and an eventfd reports the end.

Neither Python nor the C library has a binding for these calls, so they are made by number.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import struct
import sys
from typing import Final, NamedTuple


class _Numbers(NamedTuple):
    """The numbers of the system calls."""

    setup: int
    destroy: int
    submit: int
    getevents: int


# Both machines are little-endian with pointers of 64 bits, as the two layouts below assume.
_NUMBERS: Final = {
    "x86_64": _Numbers(setup=206, destroy=207, submit=209, getevents=208),
    "aarch64": _Numbers(setup=0, destroy=1, submit=2, getevents=4),
}
# struct iocb: data, key, rw_flags, opcode, reqprio, fildes, buf, nbytes, offset, reserved2, flags,
# resfd. The kernel refuses a sync whose buf, nbytes, offset or rw_flags is not 0.
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")
_FDSYNC: Final = 3
_FLAG_RESFD: Final = 1
# struct io_event: data, obj, res, res2.
_EVENT: Final = struct.Struct("<QQqq")
_REQUESTS: Final = 1


class KernelAio:
    """A context in the kernel for one sync at a time.

    `submit` does not wait for the disk. For a sync, `aio_fsync` in the kernel's `fs/aio.c` takes a
    reference to the open file, puts the sync on a work queue and returns. The kernel therefore
    syncs the right file even if its descriptor is closed meanwhile.
    Since Linux 4.18 it works on every file system that has a sync at all.

    Raises:
        OSError: There is no context: the machine has none (ENOSYS), a sandbox forbids it (EPERM),
            or the system already has as many as `fs.aio-max-nr` allows (EAGAIN).
    """

    def __init__(self) -> None:
        numbers = _NUMBERS.get(platform.machine())
        if sys.platform != "linux" or numbers is None or ctypes.sizeof(ctypes.c_void_p) != 8:
            raise OSError(errno.ENOSYS, f"no kernel AIO known on {platform.machine()}")
        self._numbers = numbers
        # These calls keep the interpreter's lock. None of them waits, and getting the lock back
        # from a busy thread would take longer than the call.
        self._syscall = ctypes.PyDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._syscall.argtypes = (ctypes.c_long,) * 6
        context = ctypes.c_ulong(0)
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._call(numbers.setup, _REQUESTS, ctypes.addressof(context))
        except OSError:
            os.close(self._ready)
            raise
        self._context = context.value
        # The kernel gets the addresses of these objects, so they must live as long as the context.
        self._request = ctypes.create_string_buffer(_IOCB.size)
        self._requests = (ctypes.c_void_p * _REQUESTS)(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._under_way = False

    def fileno(self) -> int:
        """Return a descriptor that is readable when a sync is done."""
        return self._ready

    def submit(self, fd: int) -> None:
        """Begin to sync a file as fdatasync does; no other sync may be under way.

        Raises:
            OSError: The sync has not begun: the file system cannot (EINVAL), or the kernel has no
                room.
        """
        assert not self._under_way, "one sync at a time"
        _IOCB.pack_into(
            self._request, 0, 0, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _FLAG_RESFD, self._ready
        )
        begun = self._call(
            self._numbers.submit, self._context, _REQUESTS, ctypes.addressof(self._requests)
        )
        if begun != _REQUESTS:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._under_way = True

    def done(self) -> bool:
        """Return whether the sync under way has succeeded; False while it has not ended.

        Raises:
            OSError: The sync has failed, and the content of the disk is unknown.
        """
        try:
            os.eventfd_read(self._ready)
        except BlockingIOError:
            return False
        # This waits for no event, so it needs no timeout.
        found = self._call(
            self._numbers.getevents, self._context, 0, _REQUESTS, ctypes.addressof(self._event)
        )
        if not found:
            return False
        self._under_way = False
        result = _EVENT.unpack(self._event)[2]
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return True

    def close(self, within_s: float) -> bool:
        """Wait for the sync under way, at most `within_s` seconds, and close the context.

        Returns:
            False when the sync is still under way. Then nothing is closed, because closing would
            wait for it.
        """
        if self._under_way and not select.select([self._ready], [], [], within_s)[0]:
            return False
        self._call(self._numbers.destroy, self._context)
        os.close(self._ready)
        return True

    def _call(self, number: int, *arguments: int) -> int:
        """Make a system call of at most five arguments; return its result, or raise OSError."""
        missing = (0,) * (5 - len(arguments))
        result = int(self._syscall(number, *arguments, *missing))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
