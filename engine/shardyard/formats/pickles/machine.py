"""The stack machine behind `pickles.load`: one run over one pickle, opcode by opcode.

The commonest opcodes are one chain of comparisons in falling order of use.  It is long because calls are dear: 60,000 tensors
are two million opcodes, read in 0.62 s; with a method for each it takes 0.78 s, with a chain of the first eight 0.69 s.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import repeat

from shardyard.formats.pickles.opcodes import State
from shardyard.formats.pickles.values import Call, Global, Persistent, PickleError, Truncated

_CHECK_EVERY = 4096
_LONGEST_OPERAND = 9


class Loaded:
    """A pickle that was read."""

    __slots__ = ("end", "globals", "protocol", "root")

    def __init__(self, root: object, end: int, protocol: int, names: dict[tuple[str, str], int]) -> None:
        self.root = root
        self.end = end
        """Offset of the first byte after it: another pickle may follow (the legacy container has five in a row)."""
        self.protocol = protocol
        self.globals = names
        """How often each (module, name) was referred to."""


class Machine(State):
    """One run over one pickle."""

    def run(self) -> Loaded:
        """Run to the STOP instruction.

        Raises:
            PickleError: the pickle is damaged or beyond the limits.
        """
        try:
            for _ in range(0, self.opcodes, _CHECK_EVERY):
                if self.watch is not None:
                    self.watch(self.position)
                if self.steps():
                    root = self.stack.pop()
                    return Loaded(root, self.position, self.protocol, self.names)
        except IndexError:
            raise self.ran_out() from None
        except KeyError:
            raise self.or_truncated("it refers to an object that it never stored") from None
        except UnicodeDecodeError:
            raise self.or_truncated("it holds text that is not UTF-8") from None
        except (struct.error, ValueError, OverflowError):
            raise self.or_truncated("it holds a malformed value") from None
        except Truncated:
            raise
        except PickleError as error:
            if self.partial and self.position + _LONGEST_OPERAND > len(self.data):
                raise Truncated("it ends in the middle of a value.", code="truncated") from None
            raise error
        raise PickleError("it has far more instructions than a checkpoint of its size needs.")

    def steps(self) -> bool:
        """Up to 4,096 instructions; whether STOP was reached."""
        data = self.data
        stack = self.stack
        append = stack.append
        memo = self.memo
        sparse = self.sparse
        marks = self.marks
        collapse = self.collapse
        rare = _RARE
        position = self.position
        spend = 0
        try:
            for _ in repeat(None, _CHECK_EVERY):
                opcode = data[position]
                position += 1
                if opcode == 0x72:  # LONG_BINPUT
                    n = int.from_bytes(data[position : position + 4], "little")
                    position += 4
                    if n == len(memo):
                        memo.append(stack[-1])
                    else:
                        self.put_at(n)
                    spend += 16
                elif opcode == 0x4B:  # BININT1
                    append(data[position])
                    position += 1
                elif opcode == 0x68:  # BINGET
                    n = data[position]
                    append(memo[n] if n < len(memo) else sparse[n])
                    position += 1
                elif opcode == 0x94:  # MEMOIZE
                    if sparse:
                        self.put_at(len(memo) + len(sparse))
                    else:
                        memo.append(stack[-1])
                    spend += 16
                elif opcode == 0x28:  # MARK
                    marks.append(len(stack))
                    spend += 8
                elif opcode == 0x58:  # BINUNICODE
                    n = int.from_bytes(data[position : position + 4], "little")
                    position += 4
                    if n > len(data) - position:
                        self.wanted_end = position + n
                        raise IndexError
                    append(str(data[position : position + n], "utf-8", "surrogatepass"))
                    position += n
                    spend += 60 + n
                elif opcode == 0x52:  # REDUCE
                    args = stack.pop()
                    func = stack[-1]
                    shorten = collapse.get(func.path) if type(func) is Global else None
                    stack[-1] = shorten("REDUCE", args) if shorten is not None else Call("REDUCE", func, args)
                    spend += 200
                elif opcode == 0x74:  # TUPLE
                    mark = marks.pop()
                    if mark > len(stack):
                        raise IndexError
                    items = tuple(stack[mark:])
                    del stack[mark:]
                    append(items)
                    spend += 56 + 8 * len(items)
                elif opcode == 0x86:  # TUPLE2
                    last = stack.pop()
                    stack[-1] = (stack[-1], last)
                    spend += 64
                elif opcode == 0x29:  # EMPTY_TUPLE
                    append(())
                elif opcode == 0x51:  # BINPERSID
                    pid = stack[-1]
                    stack[-1] = self.persistent(pid) if self.persistent is not None else Persistent(pid, as_text=False)
                    spend += 120
                elif opcode == 0x89:  # NEWFALSE
                    append(False)
                elif opcode == 0x85:  # TUPLE1
                    stack[-1] = (stack[-1],)
                    spend += 56
                elif opcode == 0x71:  # BINPUT
                    n = data[position]
                    position += 1
                    if n == len(memo):
                        memo.append(stack[-1])
                    else:
                        self.put_at(n)
                elif opcode == 0x6A:  # LONG_BINGET
                    n = int.from_bytes(data[position : position + 4], "little")
                    append(memo[n] if n < len(memo) else sparse[n])
                    position += 4
                elif opcode == 0x8C:  # SHORT_BINUNICODE
                    n = data[position]
                    position += 1 + n
                    if position > len(data):
                        raise IndexError
                    append(str(data[position - n : position], "utf-8", "surrogatepass"))
                    spend += 60 + n
                elif opcode == 0x4D:  # BININT2
                    append(data[position] | data[position + 1] << 8)
                    position += 2
                elif opcode == 0x4A:  # BININT
                    append(int.from_bytes(data[position : position + 4], "little", signed=True))
                    position += 4
                elif opcode == 0x87:  # TUPLE3
                    stack[-3:] = [(stack[-3], stack[-2], stack[-1])]
                    spend += 72
                elif opcode == 0x88:  # NEWTRUE
                    append(True)
                elif opcode == 0x4E:  # NONE
                    append(None)
                elif opcode == 0x2E:  # STOP
                    if not stack:
                        raise PickleError("it ends with no value.")
                    return True
                else:
                    method = rare.get(opcode)
                    if method is None:
                        raise PickleError(f"it has an unknown instruction, byte {opcode:#04x} at {position - 1}.")
                    self.position = position
                    method(self)
                    position = self.position
                    spend += 16
        finally:
            self.position = position
        self.spend(spend)
        return False

    def ran_out(self) -> PickleError:
        """Tell the end of the bytes from an empty stack."""
        if self.position >= len(self.data):
            return Truncated("it ends before its STOP instruction.", code="truncated")
        if self.wanted_end > len(self.data):
            return Truncated("it ends in the middle of a value.", code="truncated")
        return self.or_truncated("it takes a value that was never put there")

    def or_truncated(self, what: str) -> PickleError:
        """The error, unless it may come from an operand that more bytes would complete."""
        if self.partial and self.position + _LONGEST_OPERAND > len(self.data):
            return Truncated("it ends in the middle of a value.", code="truncated")
        return PickleError(f"{what}, near byte {self.position}.")


_RARE: dict[int, Callable[[State], None]] = {
    0x80: State.proto,
    0x95: State.frame,
    0x63: State.global_name,
    0x93: State.stack_global,
    0x81: State.newobj,
    0x92: State.newobj_ex,
    0x6F: State.obj,
    0x69: State.inst,
    0x62: State.build,
    0x50: State.persid,
    0x30: State.pop,
    0x31: State.pop_mark,
    0x32: State.dup,
    0x7D: State.empty_dict,
    0x5D: State.empty_list,
    0x8F: State.empty_set,
    0x64: State.dict_,
    0x6C: State.list_,
    0x91: State.frozenset_,
    0x61: State.append_,
    0x65: State.appends,
    0x90: State.additems,
    0x73: State.setitem,
    0x75: State.setitems,
    0x70: State.put,
    0x67: State.get,
    0x49: State.int_,
    0x4C: State.long_,
    0x8A: State.long1,
    0x8B: State.long4,
    0x46: State.float_,
    0x47: State.binfloat,
    0x53: State.string,
    0x56: State.unicode,
    0x8D: State.binunicode8,
    0x54: State.binstring,
    0x55: State.short_binstring,
    0x42: State.binbytes,
    0x43: State.short_binbytes,
    0x8E: State.binbytes8,
    0x96: State.bytearray8,
    0x82: State.refuse_extension,
    0x83: State.refuse_extension,
    0x84: State.refuse_extension,
    0x97: State.refuse_buffer,
    0x98: State.refuse_buffer,
}
