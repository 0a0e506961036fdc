"""What allocated a block that no line of the user's did, by the C++ frames that real recordings have."""

import pytest

from ullage.base.source_location import is_library
from ullage.explaining.analysis.recording import NO_LINE, operation_name
from ullage.recorded.history import Frame

ENGINE = (
    "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, torch::auto",
    "__clone",
)
EMPTY = "at::_ops::empty_strided::call(c10::ArrayRef<c10::SymInt>, c10::ArrayRef<c10::SymInt>, std::optional<c10"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            (EMPTY, "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)"),
            "(gradients of parameters: AccumulateGrad)",
        ),
        (
            (
                "at::_ops::mul_Tensor::call(at::Tensor const&)",
                "torch::autograd::generated::details::div_tensor_other_backward(at::Tensor const&)",
                "torch::autograd::generated::DivBackward0::apply(std::vector<at::Tensor>&&)",
            ),
            "(backward: DivBackward0)",
        ),
        (("torch::autograd::InputMetadata::reduce_grad(at::Tensor&) const",), "(backward)"),
        (("c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor, std::allocator<at::Tensor> >&)",), None),
        (("at::cuda::getNewWorkspace()", "at::cuda::getCurrentCUDABlasHandle()"), "(workspace of cuBLAS)"),
    ],
)
def test_backward_names_its_operation(names: tuple[str, ...], told: str | None) -> None:
    frames = [Frame(name, "??", 0) for name in (*names, *ENGINE)]
    assert operation_name(frames) == (told or "(communication between GPUs: c10d)")


def test_an_operation_that_cpp_called_is_named() -> None:
    """The outermost one is what was called, and what it calls in turn is not."""
    frames = [Frame(EMPTY, "??", 0), Frame("at::_ops::clone::call(at::Tensor const&)", "??", 0), Frame("main", "", 0)]
    assert operation_name(frames) == "(operation clone, called from C++)"
    assert operation_name([Frame("main", "??", 0)]) == NO_LINE
    assert operation_name([]) == NO_LINE


def test_code_of_torch_compile_is_nobodys_line() -> None:
    generated = "/tmp/torchinductor_me/l4/cl4iffgos7ugqv5pm3rgsk6mjghzyd2xr7wkqzqa6y2n3kxsm5zp.py"
    assert is_library(generated)
    assert not is_library("/home/user/project/transformer.py")
    assert not is_library("/home/user/ab/config.py")
