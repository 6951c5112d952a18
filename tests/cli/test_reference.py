"""The guide documents every command as it is."""

from pathlib import Path

from gpu_train_cli.reference import updated

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cli.md"


def test_the_guide_is_what_the_commands_say() -> None:
    text = GUIDE.read_text()
    assert text == updated(text), "run `python -m gpu_train_cli.reference docs/guides/cli.md`"
