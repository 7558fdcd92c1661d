"""All channels of a weight at once, for ONNX Runtime's quantizer, which takes them one by one.

The 27,560 channels of ResNet-50 took most of its time. The numbers are the same. Whatever is
not an 8-bit weight with a scale per channel goes to the quantizer's own functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Within the block, `quantize_static` of this process does so where it writes QDQ pairs."""
    from onnxruntime.quantization import qdq_quantizer

    found = (qdq_quantizer.compute_data_quant_params, qdq_quantizer.quantize_onnx_initializer)
    qdq_quantizer.compute_data_quant_params = _scales(found[0])
    qdq_quantizer.quantize_onnx_initializer = _quantized(found[1])
    try:
        yield
    finally:
        qdq_quantizer.compute_data_quant_params = found[0]
        qdq_quantizer.quantize_onnx_initializer = found[1]


def _scales(usual: Callable[..., Any]) -> Callable[..., Any]:
    """`compute_data_quant_params`, quick for one channel of symmetric signed weights."""
    import numpy as np
    from onnx import TensorProto
    from onnxruntime.quantization.quant_utils import get_qmin_qmax_for_qType

    zero = np.array(0, dtype=np.int8)
    tiny = np.finfo(np.float32).tiny

    def scale_of(
        data: NDArray[Any],
        quant_type: int,
        symmetric: bool,
        reduce_range: bool = False,
        min_real_range: float | None = None,
        rmin_override: float | None = None,
        rmax_override: float | None = None,
    ) -> Any:
        ranged = (min_real_range, rmin_override, rmax_override) != (None, None, None)
        if symmetric and quant_type == TensorProto.INT8 and data.dtype == np.float32 and not ranged:
            least, most = get_qmin_qmax_for_qType(quant_type, reduce_range, symmetric=True)
            extreme = max(-data.min(), data.max(), np.float32(0)) if len(data) else np.float32(0)
            scale = 2 * np.float64(extreme) / (np.float64(most) - np.float64(least))
            if scale >= tiny and least == -most:  # neither empty, nor NaN
                return zero, np.array(scale, dtype=np.float32)
        return usual(
            data, quant_type, symmetric, reduce_range, min_real_range, rmin_override, rmax_override
        )

    return scale_of


def _quantized(usual: Callable[..., Any]) -> Callable[..., Any]:
    """`quantize_onnx_initializer`, with the scale of each number where channels have theirs."""
    import numpy as np
    from onnx import TensorProto

    def quantized(
        weight: TensorProto,
        quant_type: int,
        zero_point: NDArray[Any],
        scale: NDArray[Any],
        axis: int | None = None,
        quant_weight_name: str | None = None,
        block_size: int = 0,
    ) -> TensorProto:
        if axis is None or block_size or quant_type not in (TensorProto.INT8, TensorProto.UINT8):
            return usual(weight, quant_type, zero_point, scale, axis, quant_weight_name, block_size)
        shape = tuple(weight.dims)
        along = [-1 if index == axis % len(shape) else 1 for index in range(len(shape))]

        def of_each_number(values: NDArray[Any]) -> NDArray[Any]:
            return np.broadcast_to(values.reshape(along), shape).ravel()

        every = of_each_number(zero_point), of_each_number(scale)
        return usual(weight, quant_type, *every, None, quant_weight_name)

    return quantized
