"""ONNX Runtime: a matrix product on its CUDA execution provider."""

import numpy as np
import onnx
import onnxruntime
from counted import Counted
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH = 64, 1024


def run(counted: Counted) -> None:
    weights = numpy_helper.from_array(np.zeros((WIDTH, WIDTH), np.float32), "w")
    shape = [ROWS, WIDTH]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
    assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
    counted.look()
    result = session.run(None, {"x": np.ones(shape, np.float32)})[0]
    assert result.shape == tuple(shape)
