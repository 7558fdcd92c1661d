"""Parts of the evaluation set that another machine evaluates."""

import numpy as np
import pytest
from plain_network import Samples

from optcli import accuracy
from optcli.errors import InputError
from optcli.settings.accuracy import AccuracySettings


class Far:
    """Another machine, which does the parts of even numbers."""

    parts = 5

    def __init__(self):
        self.asked = []
        self.stopped = False

    def carry_out(self, request):
        self.asked.append(request.job)
        assert request.jobs == 5
        if request.job % 2:
            return False
        accuracy.evaluate_part(request)
        return True

    def stop(self):
        self.stopped = True


def test_parts_of_other_machines_give_what_one_process_gives(evaluate):
    wrong = [(label + index % 2) % 3 for index, label in enumerate(Samples().labels)]
    settings, samples = AccuracySettings(batch_size=2), Samples(labels=wrong)
    alone, far = evaluate(samples=samples, settings=settings), Far()
    found = evaluate(samples=samples, settings=settings, elsewhere=far)
    assert sorted(far.asked) == [0, 1, 2, 3, 4]
    assert not far.stopped
    assert (found.value, list(found.ids())) == (alone.value, list(alone.ids()))
    for name in ("correct", "predicted", "label", "cluster"):
        assert np.array_equal(found.array(name), alone.array(name))
    assert np.array_equal(found.rows(found.outputs[0]), alone.rows(alone.outputs[0]))


def test_an_error_of_another_machine_is_that_of_the_evaluation(evaluate):
    class Wrong(Far):
        def carry_out(self, request):
            raise InputError("the labels are wrong", place="there", hint="look")

    with pytest.raises(InputError, match="the labels are wrong"):
        evaluate(elsewhere=Wrong())


def test_an_interrupt_ends_what_other_machines_do(evaluate):
    class Interrupted(Far):
        def carry_out(self, request):
            raise KeyboardInterrupt

    far = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        evaluate(elsewhere=far)
    assert far.stopped
