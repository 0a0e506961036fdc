"""Training idioms with one and two errors of memory: the bits of the undisturbed run, or a refusal with its reason.

The table says of each idiom what comes of one error at any operation, and of a batch that runs out until it is cut. An
idiom that changes its line, from equal to refused too, is noticed.
"""

import pytest

from tests.shared.inside import INSIDE, SLOW, inside_with_zeros

if INSIDE:
    import random

    from tests.training.guard.idioms.outcome import disturbed, idioms, in_parts, undisturbed

SEEDS = 20 if SLOW else 2
EQUAL, PARTS = "equal", "equal in parts"
"""The same bits; the same to rounding, in parts."""
OWN = "own random numbers"
"""In parts, each of which draws its own numbers, which the log says."""
WARNED, TOLD = "warned", "told"
"""BatchNorm in parts, with its warning; a number that is not put back, which the log says."""
AT_ONCE = "refused: batch{} is of type {}, which can be read only once"
TWICE = "refused: the step ran out of memory after it had changed state that the guard cannot restore: {}"
WHOLE = "refused: The batch was not split: {}"
CHANGES = WHOLE.format("forward changes {}")
SUM = WHOLE.format("the loss of {} items differs from the sum over their parts")
UNKNOWN = WHOLE.format("it holds a {}, and it is not known how that divides into items")
IN_SCRIPT = "refused: The following operation failed in the TorchScript interpreter."
WRITES = "refused: The loss function writes into the batch, which cannot be undone"
SUM_OF_8 = SUM.format(8)
HOOK = WHOLE.format("{} has a hook on its gradient")

EXPECTED: dict[str, tuple[str | tuple[str, ...], str]] = {
    "moco_data": (EQUAL, CHANGES.format("the parameter teacher.0.weight")),
    "moco_rebound": (EQUAL, CHANGES.format("the parameter teacher.0.weight")),
    "byol_in_place": (EQUAL, CHANGES.format("the parameter teacher.0.weight")),
    "momentum_after_warm_up": (
        (TWICE.format("the parameter teacher."), CHANGES.format("Momentum.calls")),
        TWICE.format("the parameter teacher."),
    ),
    "teacher_hidden_in_a_list": (EQUAL, CHANGES.format("Sequential.hidden[0]._modules['2']._parameters['bias']")),
    "teacher_outside": (EQUAL, CHANGES.format("teacher._modules['2']._parameters['bias']")),
    "dino_center_outside": (EQUAL, CHANGES.format("criterion._buffers['center']")),
    "queue_of_buffers": (EQUAL, CHANGES.format("the buffer queue of Queue")),
    "queue_of_attributes": (EQUAL, CHANGES.format("Queue.queue, Queue.pointer")),
    "queue_too_large_to_copy_at_first": (TWICE.format("Queue.queue"), CHANGES.format("Queue.queue, Queue.pointer")),
    "bank_in_a_deque": (EQUAL, CHANGES.format("Sequential.bank")),
    "bank_around_the_loss": (EQUAL, CHANGES.format("bank")),
    "bank_tensor_around_the_loss": (EQUAL, CHANGES.format("bank")),
    "codebook_of_buffers": (EQUAL, CHANGES.format("the buffer sizes of Codebook")),
    "codebook_of_an_embedding": (EQUAL, CHANGES.format("the parameter codes.weight")),
    "swa_after_each_step": (EQUAL, PARTS),
    "simclr": (EQUAL, SUM_OF_8),
    "simclr_declared": (EQUAL, WHOLE.format("splittable=False.")),
    "barlow_twins": (EQUAL, SUM_OF_8),
    "masked_autoencoder": (EQUAL, PARTS),
    "diffusion": (EQUAL, OWN),
    "generator": (AT_ONCE.format("['more']", "generator"), ""),
    "iterator": (AT_ONCE.format("", "tuple_iterator"), ""),
    "zipped": (AT_ONCE.format("[1]", "zip"), ""),
    "file": (AT_ONCE.format("['text']", "StringIO"), ""),
    "a_queue": (AT_ONCE.format("", "Queue"), ""),
    "datapipe": (AT_ONCE.format("", "Piped"), ""),
    "loader": (AT_ONCE.format("", "DataLoader"), ""),
    "iterator_in_a_dataclass": (AT_ONCE.format(".more", "list_iterator"), ""),
    "packed": (EQUAL, UNKNOWN.format("PackedSequence")),
    "packed_declared": (EQUAL, UNKNOWN.format("PackedSequence")),
    "padded": (EQUAL, PARTS),
    "nested_strided": (EQUAL, WHOLE.format("it holds a nested tensor")),
    "nested_jagged": (EQUAL, WHOLE.format("it holds a nested tensor")),
    "sparse": (EQUAL, WHOLE.format("it holds a tensor of layout torch.sparse_coo")),
    "pyg": (EQUAL, UNKNOWN.format("Graphs")),
    "pyg_written_to": (EQUAL, UNKNOWN.format("Graphs")),
    "graph_as_a_dict": (EQUAL, SUM_OF_8),
    "dgl": (EQUAL, UNKNOWN.format("Graph")),
    "batch_encoding": (EQUAL, PARTS),
    "a_dataclass": (EQUAL, PARTS),
    "a_named_tuple": (EQUAL, PARTS),
    "tensordict": (EQUAL, UNKNOWN.format("TensorDict")),
    "a_defaultdict": (EQUAL, UNKNOWN.format("defaultdict")),
    "an_ordered_dict": (EQUAL, PARTS),
    "a_user_dict": (EQUAL, PARTS),
    "an_array": (EQUAL, WHOLE.format("it holds a NumPy array, and it is not known how")),
    "rows_of_numpy_numbers": (EQUAL, PARTS),
    "a_list_of_items": (EQUAL, WHOLE.format("the loss function failed in a test run on parts of the batch")),
    "a_namespace": (EQUAL, UNKNOWN.format("SimpleNamespace")),
    "written_to": ((WRITES, TWICE.format("a tensor of the batch")), WRITES),
    "written_to_unseen": (TWICE.format("a tensor of the batch"), TWICE.format("a tensor of the batch")),
    "a_shared_table": (EQUAL, WHOLE.format("along the batch dimension, some of its tensors have size 8 and others 11")),
    "a_second_loader_in_the_loss": (TWICE.format("unlabelled"), TWICE.format("unlabelled")),
    "curriculum": (EQUAL, CHANGES.format("Counting.calls")),
    "every_second_call": (EQUAL, CHANGES.format("Counting.calls")),
    "counter_in_a_dict": (EQUAL, CHANGES.format("Counting.log['calls']")),
    "counter_of_itertools": (TWICE.format("Counting.numbers"), TWICE.format("Counting.numbers")),
    "counter_tensor": (EQUAL, CHANGES.format("Counting.total")),
    "array_attribute": (EQUAL, CHANGES.format("Counting.array")),
    "own_generator_of_python": (EQUAL, CHANGES.format("Counting.own")),
    "own_generator_of_torch": (EQUAL, CHANGES.format("Counting.generator")),
    "own_generator_of_numpy": (EQUAL, CHANGES.format("Counting.of_numpy")),
    "random_of_python": (EQUAL, OWN),
    "random_of_numpy": (EQUAL, OWN),
    "counter_around_the_loss": (TOLD, SUM_OF_8),
    "function_with_state": (EQUAL, CHANGES.format("Scaled.mean")),
    "stateful_cell": (EQUAL, CHANGES.format("Stateful.h")),
    "hidden_around_the_loss": (EQUAL, CHANGES.format("h")),
    "kv_cache": (EQUAL, CHANGES.format("Attending.cache.keys")),
    "kv_cache_written_in_place": (EQUAL, CHANGES.format("Static.keys, Static.filled")),
    "spectral_norm": (EQUAL, CHANGES.format("the buffer _u of _SpectralNorm")),
    "spectral_norm_by_hooks": (EQUAL, CHANGES.format("the buffer weight_u of Linear")),
    "weight_norm": (EQUAL, PARTS),
    "orthogonal": (EQUAL, PARTS),
    "parametrization": (EQUAL, PARTS),
    "observers": (EQUAL, CHANGES.format("the buffer scale of FakeQuantize")),
    "embedding_with_max_norm": (TWICE.format("the parameter 0.weight"), CHANGES.format("the parameter 0.weight")),
    "trained_weight_written_unseen": (TWICE.format("the parameter weight"), CHANGES.format("the parameter weight")),
    "evaluated_in_between": (EQUAL, PARTS),
    "gradients_switched_off": (EQUAL, PARTS),
    "hook_for_a_while": (EQUAL, PARTS),
    "gradient_hook_for_a_while": (EQUAL, HOOK.format("0.weight")),
    "hook_with_side_effects": (EQUAL, CHANGES.format("Sequential.seen")),
    "layer_made_in_forward": (EQUAL, PARTS),
    "running_norm_of_the_user": (EQUAL, CHANGES.format("Running.mean")),
    "mean": (EQUAL, PARTS),
    "summed": (EQUAL, PARTS),
    "summed_undeclared": (EQUAL, PARTS),
    "several": (EQUAL, PARTS),
    "with_a_penalty": (EQUAL, PARTS),
    "valid_tokens": (EQUAL, PARTS),
    "valid_tokens_weighted": (EQUAL, PARTS),
    "masked_mean": (EQUAL, PARTS),
    "weights_of_items": (EQUAL, PARTS),
    "weights_of_items_in_a_mean": (EQUAL, PARTS),
    "triplets": (EQUAL, SUM_OF_8),
    "triplets_given": (EQUAL, PARTS),
    "clip_symmetric": (EQUAL, SUM_OF_8),
    "sampled_softmax": (EQUAL, OWN),
    "mixup": (EQUAL, SUM_OF_8),
    "ppo": (EQUAL, WHOLE.format("the gradient of 4 items differs from the sum over")),
    "gradient_penalty": (EQUAL, PARTS),
    "ranking": (EQUAL, SUM_OF_8),
    "maximum": (EQUAL, SUM_OF_8),
    "not_a_number": (EQUAL, EQUAL),
    "items_along_another_dimension": (EQUAL, PARTS),
    "a_sequence_first": (EQUAL, SUM.format(6)),
    "dropout": (EQUAL, PARTS),
    "functional_dropout": (EQUAL, PARTS),
    "batchnorm": (EQUAL, WARNED),
    "batchnorm_frozen": (EQUAL, PARTS),
    "layernorm": (EQUAL, PARTS),
    "tied_weights": (EQUAL, PARTS),
    "two_optimizers": (EQUAL, PARTS),
    "gan_generator": (EQUAL, PARTS),
    "gan_that_steps_inside": (EQUAL, CHANGES.format("the parameter judge.0.weight")),
    "accumulation": (EQUAL, PARTS),
    "accumulation_that_counts": (EQUAL, CHANGES.format("Sequential.total")),
    "scheduler": (EQUAL, PARTS),
    "grad_scaler": (EQUAL, PARTS),
    "clipped": (EQUAL, PARTS),
    "autocast": (EQUAL, PARTS),
    "lbfgs": ("refused: optimizer is an LBFGS, which calls forward and back", ""),
    "checkpointed": (EQUAL, PARTS),
    "checkpointed_reentrant": (EQUAL, PARTS),
    "compiled": (EQUAL, PARTS),
    "data_parallel": (EQUAL, EQUAL),
    "lstm": (EQUAL, OWN),
    "transformer": (EQUAL, OWN),
    "convolution": (EQUAL, PARTS),
    "mixture_of_experts": (EQUAL, SUM_OF_8),
    "variational": (EQUAL, OWN),
    "instance_norm": (EQUAL, CHANGES.format("the buffer running_mean of InstanceNorm1d")),
    "sparse_gradients": (EQUAL, PARTS),
    "lazy": (TWICE.format("the parameter 0.weight"), TWICE.format("the parameter 0.weight")),
    "counter_of_a_helper": (TOLD, SUM_OF_8),
    "attribute_of_a_function": (TOLD, SUM_OF_8),
    "helper_in_a_dict": (EQUAL, CHANGES.format("mean")),
    "helper_of_the_model": (EQUAL, CHANGES.format("seen")),
    "generator_in_a_dict": (TWICE.format("sources['noise']"), OWN),
    "generator_that_counts": (TWICE.format("factors"), TWICE.format("factors.numbers")),
    "loader_in_an_object": (TWICE.format("second.batches"), TWICE.format("second.batches")),
    "cycled": (TWICE.format("factors"), TWICE.format("factors")),
    "zipped_around_the_loss": (TWICE.format("factors"), TWICE.format("factors")),
    "zipped_and_not_used": (EQUAL, PARTS),
    "file_of_factors": (TWICE.format("factors"), TWICE.format("factors")),
    "global_of_another_module": (EQUAL, CHANGES.format("seen")),
    "function_of_another_module": (EQUAL, CHANGES.format("mean")),
    "decorated": (EQUAL, CHANGES.format("seen")),
    "beside_what_lies_deep": (EQUAL, CHANGES.format("kept['mean']")),
    "module_around_the_model": (EQUAL, CHANGES.format("inner._buffers['scale'], inner.calls")),
    "cached_noise": (EQUAL, PARTS),
    "cached_noise_of_each_step": ((TOLD, OWN), TOLD),
    "counter_of_a_class": (EQUAL, CHANGES.format("Counted.calls")),
    "counter_of_an_objects_class": (EQUAL, CHANGES.format("Meter.total")),
    "namespace_of_options": (EQUAL, CHANGES.format("options.scale")),
    "options_of_the_model": (EQUAL, CHANGES.format("Sequential.options.calls")),
    "local_of_a_thread": (EQUAL, CHANGES.format("_Kept.kept.calls")),
    "context_variable": (TWICE.format("_Kept.kept"), CHANGES.format("_Kept.kept")),
    "array_of_python": (EQUAL, CHANGES.format("_Kept.kept")),
    "shared_value": (EQUAL, CHANGES.format("_Kept.kept")),
    "weak_dictionary": (EQUAL, CHANGES.format("_Kept.kept[")),
    "attribute_of_a_list": (EQUAL, CHANGES.format("_Kept.kept.__dict__['calls']")),
    "own_dataset": (EQUAL, CHANGES.format("data.weights")),
    "method_with_a_global": (EQUAL, CHANGES.format("_SEEN")),
    "callable_with_a_global": (EQUAL, CHANGES.format("_SEEN")),
    "property_with_a_global": (EQUAL, CHANGES.format("_SEEN")),
    "scripted": ((EQUAL, IN_SCRIPT), CHANGES.format("RecursiveScriptModule")),
    "attribute_of_a_tensor": (EQUAL, CHANGES.format("scale['moved']")),
    "average_of_a_package": (TWICE.format("average"), TWICE.format("average")),
    "averaged_model": (EQUAL, CHANGES.format("average.")),
    "judge_with_factors": (TWICE.format("judging"), TWICE.format("judging")),
    "average_in_a_forward_hook": (EQUAL, CHANGES.format("average['mean']")),
    "tensor_in_a_forward_hook": (EQUAL, CHANGES.format("average")),
    "gradient_hook_that_writes_a_buffer": (EQUAL, HOOK.format("0.weight")),
    "gradient_hook_with_a_closure": (EQUAL, HOOK.format("2.weight")),
    "backward_hook_with_a_closure": (EQUAL, CHANGES.format("seen")),
    "bound_hook": (EQUAL, CHANGES.format("self.mean")),
    "dropout_that_grows": (EQUAL, CHANGES.format("Dropout (dropout).p")),
    "momentum_of_a_norm": (EQUAL, CHANGES.format("BatchNorm1d (1).momentum")),
    "attribute_put_on_a_layer": (EQUAL, CHANGES.format("Linear (0).calls")),
    "attribute_of_a_parameter": (EQUAL, CHANGES.format("the parameter 0.weight['seen']")),
    "number_of_a_parameter": (EQUAL, CHANGES.format("")),
    "rate_set_in_the_loss": (EQUAL, CHANGES.format("SGD")),
    "scheduler_in_the_loss": (EQUAL, CHANGES.format("SGD[0]['lr'], scheduler.last_epoch")),
    "judge_with_state": (TWICE.format("judging"), TWICE.format("judging")),
    "own_scaler": (EQUAL, CHANGES.format("")),
    "perturbation_with_a_gradient": (EQUAL, CHANGES.format("delta.grad")),
    "functional_call_of_an_average": (EQUAL, CHANGES.format("teacher['")),
    "functional_call_of_a_new_dict": (EQUAL, CHANGES.format("teacher,")),
    "function_that_counts_in_backward": (EQUAL, CHANGES.format("Counted.log['calls']")),
    "checkpoint_with_random_numbers": (EQUAL, PARTS),
    "checkpoint_that_draws_again": (EQUAL, OWN),
    "gradients_of_an_auxiliary_loss": (EQUAL, CHANGES.format("gradients, because it calls backward itself")),
    "tied_by_reference": (EQUAL, CHANGES.format("Shared (0).calls")),
    "learned_queue_in_a_list": (EQUAL, CHANGES.format("queue[0]")),
    "teacher_in_a_class": (EQUAL, CHANGES.format("Student.teacher[0]")),
    "autocast_by_hand": (EQUAL, PARTS),
    "autocast_switched": (EQUAL, PARTS),
    "default_type_switched": (EQUAL, OWN),
    "saved_tensors_packed_by_hand": (EQUAL, PARTS),
}
"""By idiom: what may come of one error beside the same bits, and what comes of a batch that has to be cut."""
AT_EACH = ("accumulation_that_counts",)
"""Idioms that are tried with an error at each operation, or at each third."""
NOT_AT_RANDOM = ("nested_strided", "nested_jagged")
"""PyTorch ends the process where an operation inside of a nested tensor raises an error."""


@pytest.mark.by_day(5)
@pytest.mark.parametrize("name", EXPECTED)
@inside_with_zeros
def test_an_idiom_is_equal_or_refused(name: str) -> str:
    """One error and two at operations chosen by number; and errors until the batch is cut."""
    build = idioms()[name]
    once, parts = EXPECTED[name]
    outcome, expected, operations = undisturbed(build)
    if outcome:
        assert outcome.startswith(once), outcome
        return outcome
    chance = random.Random(name)
    found = []
    chosen = [chance.randrange(operations) for _ in range(0 if name in NOT_AT_RANDOM else SEEDS)]
    for first in range(0, operations, 1 if SLOW else 3) if name in AT_EACH else chosen:
        found.append(disturbed(build, expected, {first}))
        assert found[-1] == EQUAL or (once != EQUAL and found[-1].startswith(once)), (first, found[-1])
        second = first + chance.randrange(1, operations // 2)
        found.append(disturbed(build, expected, {first, second}))
        is_known = found[-1] == EQUAL or found[-1].startswith(once) or found[-1].startswith(parts)
        assert is_known, (first, second, found[-1])
    cut = in_parts(build, expected)
    assert cut.startswith(parts) or (parts == PARTS and cut == EQUAL), cut
    return f"{len(found)} tries: {sorted(set(found))}; in parts: {cut}"


@inside_with_zeros
def test_every_idiom_is_in_the_table() -> None:
    """And nothing else; a hundred and eighty at least."""
    assert set(idioms()) == set(EXPECTED)
    assert len(EXPECTED) >= 180
