"""Fine-tuning on a real GPU: it learns there, and its weights come back to the CPU."""

from __future__ import annotations

import pytest
from needs import needs
from stripes import tuned, written

pytestmark = pytest.mark.gpu


def test_it_learns_on_a_gpu(tmp_path):
    needs("gpu in torch")
    options = {"device": "cuda", "distillation_weight": 0.3, "epochs": 6, "reestimate_batchnorm": True}
    model, facts, _ = tuned(written(tmp_path), tmp_path / "b", **options)
    assert facts["validation_accuracy"] > 0.95
    assert {value.device.type for value in model.state_dict().values()} == {"cpu"}
