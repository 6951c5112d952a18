"""What goes wrong is logged once, a line each."""

import logging

from gpu_train_fuse.report import MAX_KNOWN, Report


def test_a_failure_is_one_line_whatever_the_name_and_told_once(caplog):
    report = Report()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            report("/a\nERROR /b\x1b[2J: block 12 cannot be read")
    assert caplog.messages == ["/a\\x0aERROR /b\\x1b[2J: block 12 cannot be read"]


def test_what_was_told_long_ago_is_told_again(caplog):
    report = Report()
    with caplog.at_level(logging.ERROR):
        for n in (*range(MAX_KNOWN + 1), 0, MAX_KNOWN):
            report(f"failure {n}")
    assert caplog.messages[-2:] == [f"failure {MAX_KNOWN}", "failure 0"]
