"""Text of others in a pull request's comment."""

import pytest

from optcli.report.markdown_text import escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[click](https://evil)", "[click\\](https:\u200b//evil)"),
        ("![pixel](http://evil/x.png)", "![pixel\\](http:\u200b//evil/x.png)"),
        ("@everyone, a@b.org", "@\u200beveryone, a@\u200bb.org"),
        ("see WWW.evil.org", "see WWW\u200b.evil.org"),
        ("<img src=x> `code` *bold* a_b", "\\<img src=x> \\`code\\` \\*bold\\* a\\_b"),
        ("a | b\n# heading", "a \\| b # heading"),
        ("[a][b] [b]: x", "[a\\][b] [b\\]: x"),
        ("1.5x [1.2, 1.8]", "1.5x [1.2, 1.8]"),
        ("s3://bucket/key is 1.5 times", "s3://bucket/key is 1.5 times"),
    ],
)
def test_it_links_nothing_and_calls_nobody(text, shown):
    assert escaped(text) == shown
