"""A file's bytes, memory-mapped: a failed read of them is a loader error instead of the end of the process."""

import ctypes
import mmap
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.store import Lease
from gpuload.types import I64, U8

_SLOTS = 1 << 16  # as many mappings as Linux allows a process by default
_SLOT_NUMBERS = 4  # int64: first address, end, address of the fault or 0, unused
_MAP_FIXED = 0x10
_SA_SIGINFO, _SA_ONSTACK = 4, 0x08000000
_SI_CODE, _SI_ADDR = 8, 16  # where siginfo_t holds them, on 64-bit Linux

_handlers: list[tuple[int, "_SignalAction", "_SignalAction", Any]] = []  # the latter keep memory and code alive

_FAILED = ctypes.c_void_p(-1).value


# The protected ranges of memory, which the handler reads and writes. Slot 0 is not a range: its first number counts
# faults, its second those passed to the previous handler. The memory is never freed, since a handler cannot be removed
# safely.
_ranges: I64 = np.zeros((_SLOTS, _SLOT_NUMBERS), np.int64)
_free = list(range(_SLOTS - 1, 0, -1))
_files: dict[int, tuple[Path, object]] = {}


def install() -> None:
    """Installs the handler, unless it cannot be compiled; SIGBUS then ends the process.

    A further call replaces a handler installed since then, as by `ray.init`: 5 µs.
    """
    libc = ctypes.CDLL(None)
    if not _handlers:
        try:
            import llvmlite.binding
        except (ImportError, OSError):
            return
        previous, default = _SignalAction(), _SignalAction()
        addresses = ctypes.addressof(previous), ctypes.addressof(default)
        engine = _compile(llvmlite.binding, libc, *addresses)
        _handlers.append((engine.get_function_address("handle"), previous, default, engine))
    handler, previous, *_ = _handlers[0]  # without llvmlite, whose lock a forked child may have inherited locked
    own, current = _SignalAction(), _SignalAction()
    own.handler = handler
    own.flags = _SA_SIGINFO | _SA_ONSTACK
    libc.sigaction(signal.SIGBUS, None, ctypes.byref(current))
    if current.handler != own.handler:
        ctypes.memmove(ctypes.byref(previous), ctypes.byref(current), ctypes.sizeof(current))
        _ranges[0, 1] = 0
        libc.sigaction(signal.SIGBUS, ctypes.byref(own), None)


def protect(path: Path, address: int, size: int, owner: object) -> int:
    """Protects the memory that a file is mapped to, until `release`. Returns its slot, or 0 if none is free.

    owner: the object that queries its faults.
    """
    if not _free:
        return 0
    slot = _free.pop()
    _files[slot] = path, owner
    end = address + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    _ranges[slot] = 0, end, 0, 0
    _ranges[slot, 0] = address  # last, since the handler goes by it
    return slot


def release(slot: int) -> None:
    """Ends the protection, before the memory is reused."""
    if slot:
        _ranges[slot] = 0
        _files.pop(slot, None)
        _free.append(slot)


def count() -> int:
    """Number of faults of all protected files so far."""
    return int(_ranges[0, 0])


def find_fault(owner: object) -> tuple[Path, int] | None:
    """An unreadable file of this owner that is still protected, and the byte of the fault."""
    # A copy takes no object that the garbage collector counts: a list of items might start it, and mappings among the
    # garbage are released then.
    for slot, (path, its_owner) in _files.copy().items():
        if its_owner is owner and _ranges[slot, 2]:
            return path, int(_ranges[slot, 2] - _ranges[slot, 0])
    return None


class _SignalAction(ctypes.Structure):
    """`struct sigaction` of glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _compile(llvm: Any, libc: Any, previous: int, default: int) -> Any:
    """Compiles the handler. It calls only mmap and, for the previous handler, sigaction and raise; all three may be
    called from a signal handler.

        void handle(int number, siginfo_t *info, void *context) {
            found = 0;
            if (info->si_code > 0)      // a fault, not sent by kill
                for (slot = 1; slot < SLOTS; slot++)    // a file may be protected several times
                    if (table[slot].begin <= info->si_addr && info->si_addr < table[slot].end) {
                        page = info->si_addr & -PAGESIZE;
                        if (mmap(page, table[slot].end - page, PROT_READ, FIXED | PRIVATE | ANONYMOUS, -1, 0) == page) {
                            table[slot].fault = info->si_addr;
                            table[0].begin++;
                            found++;
                        }
                    }
            if (found)
                return;
            sigaction(SIGBUS, table[0].end++ == 0 ? previous : default, NULL);
            if (info->si_code <= 0)
                raise(SIGBUS);
        }                               // else the access is repeated, with the previous handler

    A handler that replaced this one may pass a fault to it, and each would call the other forever.
    """
    from llvmlite import ir

    word, number = ir.IntType(64), ir.IntType(32)
    module = ir.Module("bus_errors")
    module.triple = llvm.get_default_triple()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [number, word, word]), "handle")
    builder = ir.IRBuilder(function.append_basic_block("entry"))

    def constant(value: int) -> Any:
        return ir.Constant(word, value)

    def at(address: Any, kind: Any = word) -> Any:
        return builder.inttoptr(address, kind.as_pointer())

    def call(name: str, result: Any, *args: Any) -> Any:
        address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0
        kind = ir.FunctionType(result, [arg.type for arg in args])
        return builder.call(at(constant(address), kind), args)

    table, slot_bytes = _ranges.ctypes.data, 8 * _SLOT_NUMBERS
    info, found, slot_at = function.args[1], builder.alloca(word), builder.alloca(word)
    builder.store(constant(0), found)
    builder.store(constant(table + slot_bytes), slot_at)
    code = builder.load(at(builder.add(info, constant(_SI_CODE)), number))
    address = builder.load(at(builder.add(info, constant(_SI_ADDR))))
    is_fault = builder.icmp_signed(">", code, ir.Constant(number, 0))
    search, searched = function.append_basic_block("search"), function.append_basic_block("searched")
    builder.cbranch(is_fault, search, searched)

    builder.position_at_end(search)
    slot = builder.load(slot_at)
    first, last = builder.load(at(slot)), builder.load(at(builder.add(slot, constant(8))))
    is_used = builder.icmp_unsigned("!=", first, constant(0))
    is_inside = builder.and_(builder.icmp_unsigned("<=", first, address), builder.icmp_unsigned("<", address, last))
    with builder.if_then(builder.and_(is_used, is_inside)):
        page = builder.and_(address, constant(-mmap.PAGESIZE))
        flags = ir.Constant(number, _MAP_FIXED | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        rest = (ir.Constant(number, mmap.PROT_READ), flags, ir.Constant(number, -1), constant(0))
        mapped = call("mmap", word, page, builder.sub(last, page), *rest)
        with builder.if_then(builder.icmp_unsigned("==", mapped, page)):
            builder.store(address, at(builder.add(slot, constant(16))))
            builder.atomic_rmw("add", at(constant(table)), constant(1), "seq_cst")
            builder.store(constant(1), found)
    following = builder.add(slot, constant(slot_bytes))
    builder.store(following, slot_at)
    end = constant(table + slot_bytes * _SLOTS)
    builder.cbranch(builder.icmp_unsigned("<", following, end), search, searched)

    builder.position_at_end(searched)
    with builder.if_then(builder.icmp_unsigned("==", builder.load(found), constant(0))):
        before = builder.atomic_rmw("add", at(constant(table + 8)), constant(1), "seq_cst")
        is_first = builder.icmp_unsigned("==", before, constant(0))
        action = builder.select(is_first, constant(previous), constant(default))
        call("sigaction", number, ir.Constant(number, int(signal.SIGBUS)), action, constant(0))
        with builder.if_then(builder.not_(is_fault)):
            call("raise", number, ir.Constant(number, int(signal.SIGBUS)))
    builder.ret_void()

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), target)
    engine.finalize_object()
    return engine


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class MappedFile:
    """A file that stays mapped as long as an array of its bytes exists.

    Python's own `mmap` keeps a file handle for each mapping, and a process has 1,024 by default: a window of a thousand
    shards would not fit.

    lease: the file. owner: the object that queries `gpuload.read.mapped_file` for its faults. data: uint8 (size,),
    read-only. stamp: the file's `os.stat`.

    Raises:
        OSError: it cannot be opened or mapped.
    """

    def __init__(self, lease: Lease, owner: object) -> None:
        with lease.open() as file:
            handle = file.fileno()
            self.stamp = os.fstat(handle)
            size = self.stamp.st_size
            address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0) if size else 0
            if address == _FAILED:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        memory = _Memory(address, size)
        if size:
            slot = protect(lease.path, address, size, owner)
            # Not at the interpreter's end, when threads may still be reading.
            weakref.finalize(memory, _unmap, address, size, slot).atexit = False
        self.data: U8 = np.asarray(memory)


class _Memory:
    """The object that arrays reference."""

    def __init__(self, address: int, size: int) -> None:
        about = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        self.__array_interface__: dict[str, Any] = about


def _unmap(address: int, size: int, slot: int) -> None:
    release(slot)
    _libc.munmap(address, size)
