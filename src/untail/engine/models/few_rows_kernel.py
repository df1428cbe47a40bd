"""Machine code for a product of a few rows with a matrix, made by LLVM when it is first wanted; it takes 0.3 s.

torch's own products of a few rows cost several times that of one on an Arm CPU, though the matrix is read once either
way. Here every vector of the matrix that was read is used for up to six rows.

Invariant: an entry of the result is summed up in one order, whatever rows are beside its own and however many threads
there are: LANES sums along the row, then these by halves. It runs without Python's lock, in the threads that torch
runs in, so that the two never wait for each other's.

Shape suffixes: R rows, I inputs, O outputs. x_RI, weight_OI and out_RO are floats, each row after the other.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Any

import torch
from llvmlite import binding, ir

from untail.engine.models.few_rows import LINE, PAIR

LANES = 4  # floats in a register of NEON
GROUP = 6  # rows that one pass over some outputs serves

INT, FLOAT, VOID = ir.IntType(64), ir.FloatType(), ir.VoidType()
VECTOR, FLOATS, BYTES = ir.VectorType(FLOAT, LANES), FLOAT.as_pointer(), ir.IntType(8).as_pointer()
FLAG = ir.IntType(32)
Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ARGUMENTS = Struct("6q")  # addresses of x_RI, weight_OI and out_RO, then I, O, R


class Kernel:
    """Pre: I is a multiple of LINE, O of PAIR; all three are contiguous, of 4-byte floats."""

    def __init__(self) -> None:
        """Raises where torch's threads are not those of an OpenMP that GCC's programs know."""
        openmp = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))  # torch takes them from it
        self._parallel = openmp.GOMP_parallel
        self._parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._parallel.restype = None
        which, of_how_many = openmp.omp_get_thread_num, openmp.omp_get_num_threads
        module = ir.Module()
        module.triple = binding.get_default_triple()
        # One row is bound by memory alone, and memory is read fastest in one go.
        for name, most, beside in (("one", 1, 1), ("several", GROUP, PAIR)):
            _product(module, name, most, beside, [_address(which), _address(of_how_many)])
        self._code = _compile(str(module))
        self._one, self._several = (Function(self._code.get_function_address(name)) for name in ("one", "several"))

    def __call__(self, x: int, weight: int, out: int, inputs: int, outputs: int, rows: int, threads: int) -> None:
        arguments = ARGUMENTS.pack(x, weight, out, inputs, outputs, rows)
        function = self._one if rows == 1 else self._several
        if threads == 1:
            function(arguments)  # OpenMP would take as long as all else of a call
        else:
            self._parallel(function, arguments, threads, 0)


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _compile(code: str) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(code)
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    compiled = binding.create_mcjit_compiler(module, machine)
    compiled.finalize_object()
    return compiled


def _product(module: ir.Module, name: str, most: int, beside: int, openmp: list[int]) -> None:
    """A thread's share of the outputs, `beside` at a time, for all rows, `most` at a time: what of the matrix the
    first of them have read is still near for the others."""
    groups = [_group(module, f"{name}_{rows}", rows, beside) for rows in range(1, most + 1)]
    function = ir.Function(module, ir.FunctionType(VOID, [INT.as_pointer()]), name)
    b = ir.IRBuilder(function.append_basic_block())
    given = [b.load(b.gep(function.args[0], [_int(place)])) for place in range(6)]
    x_RI, weight_OI, out_RO = (b.inttoptr(address, FLOATS) for address in given[:3])
    inputs, outputs, rows = given[3:]
    thread, threads = (b.sext(b.call(_function_at(b, address), []), INT) for address in openmp)
    blocks = b.sdiv(outputs, _int(beside))
    begin, end = (b.sdiv(b.mul(blocks, place), threads) for place in (thread, b.add(thread, _int(1))))
    with _loop(b, begin, end, 1) as block:
        output = b.mul(block, _int(beside))
        some_of_weight = b.gep(weight_OI, [b.mul(output, inputs)])
        with _loop(b, _int(0), rows, most) as row:
            x = b.gep(x_RI, [b.mul(row, inputs)])
            out = b.gep(out_RO, [b.add(b.mul(row, outputs), output)])
            _call_for(b, b.sub(rows, row), groups, [x, some_of_weight, out, inputs, outputs])
    b.ret_void()


def _call_for(b: ir.IRBuilder, rows: Any, groups: list[ir.Function], arguments: list[Any]) -> None:
    """The group for so many rows, the largest for more."""
    largest, done = b.append_basic_block(), b.append_basic_block()
    choice = b.switch(rows, largest)
    for count, group in enumerate(groups, start=1):
        case = largest if group is groups[-1] else b.append_basic_block()
        if case is not largest:
            choice.add_case(_int(count), case)
        b.position_at_end(case)
        b.call(group, arguments)
        b.branch(done)
    b.position_at_end(done)


def _group(module: ir.Module, name: str, rows: int, beside: int) -> ir.Function:
    """`rows` rows by `beside` outputs."""
    function = ir.Function(module, ir.FunctionType(VOID, [FLOATS, FLOATS, FLOATS, INT, INT]), name)
    function.linkage = "internal"
    x, weight, out, inputs, outputs = function.args
    b = ir.IRBuilder(function.append_basic_block())
    fma, fetch = _fma(module), _fetch(module)
    x_rows = [b.gep(x, [b.mul(inputs, _int(row))]) for row in range(rows)]
    weight_rows = [b.gep(weight, [b.mul(inputs, _int(output))]) for output in range(beside)]
    ahead = b.gep(weight, [b.mul(inputs, _int(beside))])  # the next outputs' rows are fetched in memory's own order
    sums = [b.alloca(VECTOR) for _ in range(rows * beside)]  # LLVM makes registers of them
    for each in sums:
        b.store(ir.Constant(VECTOR, [0.0] * LANES), each)
    with _loop(b, _int(0), inputs, LINE) as line:
        for output in range(beside) if beside > 1 else ():
            where = b.gep(ahead, [b.add(b.mul(line, _int(beside)), _int(LINE * output))])
            b.call(fetch, [b.bitcast(where, BYTES), *(ir.Constant(FLAG, flag) for flag in (0, 3, 1))])
        for lane in range(0, LINE, LANES):
            place = b.add(line, _int(lane))
            of_weight = [_vector(b, row, place) for row in weight_rows]
            for row, of_x in enumerate(_vector(b, each, place) for each in x_rows):
                for output in range(beside):
                    own = sums[row * beside + output]
                    b.store(b.call(fma, [of_x, of_weight[output], b.load(own)]), own)
    for row in range(rows):
        for output in range(beside):
            where = b.gep(out, [b.add(b.mul(outputs, _int(row)), _int(output))])
            b.store(_total(b, b.load(sums[row * beside + output])), where)
    b.ret_void()
    return function


def _total(b: ir.IRBuilder, vector: Any) -> Any:
    """Of all lanes, by halves."""
    half = LANES
    while half > 1:
        half //= 2
        halves = (list(range(half)), list(range(half, 2 * half)))
        low, high = (
            b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(FLAG, half), lanes)) for lanes in halves
        )
        vector = b.fadd(low, high)
    return b.extract_element(vector, ir.Constant(FLAG, 0))


@contextmanager
def _loop(b: ir.IRBuilder, begin: Any, end: Any, step: int) -> Iterator[Any]:
    before, body, after = b.block, b.append_basic_block(), b.append_basic_block()
    b.cbranch(b.icmp_signed("<", begin, end), body, after)
    b.position_at_end(body)
    count = b.phi(INT)
    count.add_incoming(begin, before)
    yield count
    following = b.add(count, _int(step))
    count.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, end), body, after)
    b.position_at_end(after)


def _int(value: int) -> ir.Constant:
    return ir.Constant(INT, value)


def _vector(b: ir.IRBuilder, floats: Any, place: Any) -> Any:
    loaded = b.load(b.bitcast(b.gep(floats, [place]), VECTOR.as_pointer()))
    loaded.align = 4
    return loaded


def _function_at(b: ir.IRBuilder, address: int) -> Any:
    return b.inttoptr(_int(address), ir.FunctionType(FLAG, []).as_pointer())


def _fma(module: ir.Module) -> ir.Function:
    return _intrinsic(module, f"llvm.fma.v{LANES}f32", VECTOR, [VECTOR] * 3)


def _fetch(module: ir.Module) -> ir.Function:
    return _intrinsic(module, "llvm.prefetch.p0", VOID, [BYTES, FLAG, FLAG, FLAG])


def _intrinsic(module: ir.Module, name: str, result: Any, arguments: list[Any]) -> ir.Function:
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)
