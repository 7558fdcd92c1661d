"""Which of the tensors in a checkpoint are the network's weights."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from optcli.errors import InputError
from optcli.models.formats import torch_weights

pytestmark = pytest.mark.slow


class Net(torch.nn.Module):
    def __init__(self, value: float = 0.0, classes: int = 2) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        self.head = torch.nn.Linear(3, classes)
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, value)


def prefixed(prefix: str, value: float, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in Net(value).state_dict().items()} | more


def averaged(value: float) -> dict[str, torch.Tensor]:
    return AveragedModel(Net(value), multi_avg_fn=get_ema_multi_avg_fn(0.9)).state_dict()


def loaded(tmp_path, content, key: str = "", name: str = "last.pth") -> tuple[float, str]:
    """The value that the network's weights have after loading, and the key of those that were taken."""
    torch.save(content, tmp_path / name)
    model = Net()
    taken = torch_weights.read_checkpoint(tmp_path / name, key).load_into(model)
    return float(model.head.weight[0, 0]), taken


def training_state() -> dict[int, dict[str, torch.Tensor]]:
    optimizer = torch.optim.AdamW(Net().parameters(), lr=0.1)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (prefixed("", 1), ""),
        (prefixed("module.", 1), "module"),
        (prefixed("_orig_mod.", 1), "_orig_mod"),
        (prefixed("module._orig_mod.", 1), "module._orig_mod"),
        ({"net": prefixed("", 1), "acc": 91.5, "epoch": 3}, "net"),
        ({"model": prefixed("", 1), "optimizer": training_state(), "epoch": 3}, "model"),
        ({"ema": {"module": prefixed("", 1), "updates": 10}, "last_epoch": 3}, "ema.module"),
        ({"state_dict": prefixed("model.", 1), "callbacks": {}, "loops": {}}, "state_dict.model"),
        (
            {"state_dict": prefixed("model.", 1, **{"loss.weight": torch.ones(2)})},
            "state_dict.model",
        ),
        ({"model_ema": averaged(1)}, "model_ema.module"),
        ({"generator": [prefixed("", 1)], "sizes": [1, 2]}, "generator.0"),
        ({"model": prefixed("", 1), "state_dict": prefixed("", 1)}, "model"),
        ({"model": prefixed("", 1), "ema": None, "ema_decay": torch.tensor(0.99)}, "model"),
        (OrderedDict(prefixed("", 1) | {"epoch": 5}), ""),
    ],
)
def test_weights_are_taken_out_of_what_wraps_them(tmp_path, content, key):
    assert loaded(tmp_path, content) == (1.0, key)


BOTH = [
    ({"state_dict": prefixed("", 1), "state_dict_ema": prefixed("", 2)}, "state_dict_ema"),
    ({"model": prefixed("", 1), "model_ema": averaged(2)}, "model_ema.module"),
    ({"model": prefixed("", 1), "ema": {"module": prefixed("", 2)}}, "ema.module"),
    ({"params": prefixed("", 1), "params_ema": prefixed("module.", 2)}, "params_ema.module"),
    ({"state_dict": prefixed("model.", 1) | prefixed("ema_model.", 2)}, "state_dict.ema_model"),
    (prefixed("", 1) | prefixed("ema.", 2), "ema"),
]


@pytest.mark.parametrize(("content", "key"), BOTH)
def test_where_several_weights_fit_the_recipe_says_which(tmp_path, content, key):
    with pytest.raises(InputError, match="several sets of weights") as error:
        loaded(tmp_path, content)
    assert f"weights: {{file: last.pth, key: {key}}}" in error.value.hint
    assert loaded(tmp_path, content, key) == (2.0, key)
    first = key.split(".")[0]
    if first in content and key != "state_dict.ema_model":  # the entry alone says it too
        assert loaded(tmp_path, content, first) == (2.0, key)


def test_averaged_weights_without_names_are_not_passed_over_in_silence(tmp_path):
    shadow = list(Net(2).state_dict().values())
    content = {"model": prefixed("", 1), "ema": {"shadow_params": shadow, "decay": 0.99}}
    with pytest.raises(InputError, match=r"averaged ones in 'ema\.shadow_params'") as error:
        loaded(tmp_path, content)
    assert "key: model}" in error.value.hint
    assert loaded(tmp_path, content, "model") == (1.0, "model")


def test_a_key_that_is_not_there_names_those_that_are(tmp_path):
    content = {"net": prefixed("", 1), "net_ema": prefixed("", 2)}
    with pytest.raises(InputError, match="no weights under 'netema'") as error:
        loaded(tmp_path, content, "netema")
    assert "net_ema" in error.value.hint


@pytest.mark.parametrize("key", ["", "state_dict", "state_dict.model"])
def test_weights_that_do_not_fit_are_compared_without_what_wraps_them(tmp_path, key):
    state = {f"model.{name}": value for name, value in Net(1, classes=7).state_dict().items()}
    with pytest.raises(InputError, match=r"head\.weight is \[7, 3\], the model has \[2, 3\]"):
        loaded(tmp_path, {"state_dict": state, "optimizer": training_state()}, key)


@pytest.mark.parametrize("content", [{}, [1, 2], {"epoch": 3, "optimizer": {}}, torch.ones(3)])
def test_a_file_without_a_state_dict_says_so(tmp_path, content):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(InputError, match="state dict"):
        torch_weights.read_checkpoint(tmp_path / "w.pth")


def test_safetensors_are_unwrapped_too(tmp_path):
    from safetensors.torch import save_file

    save_file(prefixed("model.", 1), tmp_path / "w.safetensors")
    model = Net()
    assert torch_weights.read_checkpoint(tmp_path / "w.safetensors").load_into(model) == "model"
