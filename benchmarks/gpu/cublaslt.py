"""cuBLASLt by its C interface, from the copy torch has loaded: all algorithms it names for a product, ready to be timed."""
import ctypes

import torch

CODES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
SUMS_IN_FLOAT, TURN_LEFT, TURN_RIGHT, WORKSPACE = 68, 3, 4, 32 << 20


class Heuristic(ctypes.Structure):
    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


class CublasLt:
    def __init__(self):
        torch.mm(*(torch.zeros(16, 16, device="cuda", dtype=torch.bfloat16),) * 2)  # loads the library
        for name in ("libcublasLt.so.13", "libcublasLt.so.12"):
            try:
                self.library = ctypes.CDLL(name)
                break
            except OSError:
                self.library = None
        if self.library is None:
            raise OSError("libcublasLt is not here")
        self.handle = self.made("cublasLtCreate")
        self.space = torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")

    def made(self, name, *arguments):
        p = ctypes.c_void_p()
        self.call(name, ctypes.byref(p), *arguments)
        return p

    def layout(self, dtype, rows, columns, step):
        return self.made("cublasLtMatrixLayoutCreate", ctypes.c_int(CODES[dtype]), ctypes.c_uint64(rows), ctypes.c_uint64(columns),
                         ctypes.c_int64(step))

    def algorithms(self, out, a, b, most=16):
        """Calls run(b) that set out = a b, one an algorithm; b may be another matrix that lies the same way."""
        (m, k), n = a.shape, b.shape[1]
        turn_left, turn_right = int(b.stride(0) == 1 and b.stride(1) != 1), int(a.stride(1) != 1)
        product = self.made("cublasLtMatmulDescCreate", ctypes.c_int(SUMS_IN_FLOAT), ctypes.c_int(0))
        for what, turned in ((TURN_LEFT, turn_left), (TURN_RIGHT, turn_right)):
            self.call("cublasLtMatmulDescSetAttribute", product, ctypes.c_int(what), ctypes.byref(ctypes.c_int(turned)), ctypes.c_size_t(4))
        left = self.layout(b.dtype, *((k, n, b.stride(1)) if turn_left else (n, k, b.stride(0))))
        right = self.layout(a.dtype, *((m, k, a.stride(1)) if turn_right else (k, m, a.stride(0))))
        result = self.layout(out.dtype, n, m, out.stride(0))
        wish = self.made("cublasLtMatmulPreferenceCreate")
        self.call("cublasLtMatmulPreferenceSetAttribute", wish, ctypes.c_int(1), ctypes.byref(ctypes.c_uint64(WORKSPACE)), ctypes.c_size_t(8))
        found, count = (Heuristic * most)(), ctypes.c_int()
        self.call("cublasLtMatmulAlgoGetHeuristic", self.handle, product, left, right, result, result, wish, ctypes.c_int(most), found,
                  ctypes.byref(count))
        one, none = ctypes.c_float(1), ctypes.c_float(0)

        def run_of(heuristic):
            def run(weight):
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                self.call("cublasLtMatmul", self.handle, product, ctypes.byref(one), ctypes.c_void_p(weight.data_ptr()), left,
                          ctypes.c_void_p(a.data_ptr()), right, ctypes.byref(none), ctypes.c_void_p(out.data_ptr()), result,
                          ctypes.c_void_p(out.data_ptr()), result, ctypes.byref(heuristic.algorithm), ctypes.c_void_p(self.space.data_ptr()),
                          ctypes.c_size_t(WORKSPACE), stream)
            run.keeps = (found, a, b, out)
            return run
        return [run_of(found[i]) for i in range(count.value) if found[i].state == 0]
