"""Columns of plain text are as wide as their widest cell."""

from optcli.report.terminal import aligned, plain

ROWS = (("own", "layer"), ("3.2 dB", "a"), ("NaN", "conv/1"))


def test_columns_are_aligned_to_their_sides():
    assert list(aligned(ROWS)) == ["   own   layer", "3.2 dB       a", "   NaN  conv/1"]
    assert list(aligned(ROWS, left={1})) == ["   own  layer ", "3.2 dB  a     ", "   NaN  conv/1"]


def test_without_a_width_nothing_is_broken():
    line = "word " * 100
    assert plain(line) == f"{line.rstrip()}\n"
    assert len(plain(line, 60).splitlines()) > 1
