"""What files are open of is held, once, and a moment longer."""

import pytest

from gpu_train_cas.errors import NotFound
from gpu_train_fuse.holds import IDLE_S, Holds


def test_held_while_open_and_a_moment_longer(catalogue):
    now = [100.0]
    holds = Holds(catalogue.holding, lambda: now[0])
    one, other = catalogue.record({"a": b"1"}), catalogue.record({"a": b"2"})
    with holds.holding(one), holds.holding(one), holds.holding(other):
        now[0] += 10 * IDLE_S
        holds.drop_idle()
        assert catalogue.held == {one: 1, other: 1}
    holds.drop_idle()
    assert catalogue.held == {one: 1, other: 1}
    now[0] += 0.9 * IDLE_S
    with holds.holding(other):
        pass
    now[0] += 0.2 * IDLE_S
    holds.drop_idle()
    assert catalogue.held == {one: 0, other: 1}
    now[0] += IDLE_S
    holds.drop_idle()
    assert catalogue.held.total() == 0


def test_what_is_gone_is_not_held(catalogue):
    def gone(record):
        raise NotFound("it is gone")

    holds = Holds(gone, lambda: 0.0)
    for _ in range(2):
        with pytest.raises(NotFound), holds.holding(catalogue.record({})):
            pass
    holds.drop_idle()
