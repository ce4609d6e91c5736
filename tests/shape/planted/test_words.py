"""Words that the package no longer says, planted in strings, and innocent neighbours."""

from __future__ import annotations

from shape.planted import found
from shape.words import check_words


def test_an_old_word_in_a_string_is_caught():
    for words in [
        *("told", "tells", "goes on", "Gone on", "such as are", "otherwise than", "takes away", "stands in"),
        *("is held to", "is bound to", "came by", "made anew", "apart", "forgotten", "as it is", "number format"),
        *("the look", "waves", "heat", "gives back", "left out", "cut short"),
    ]:
        assert found(check_words, f"print('it {words} here')") == [1]
        assert found(check_words, f"print(f'{{name}}: {words}.')") == [1]
        assert found(check_words, f'"""One line.\n\nAnother, {words}."""') == [3]
        assert found(check_words, f'"""One line.\n\nAnother, {words.replace(" ", chr(10))}."""') == [3]


def test_names_comments_and_other_words_are_let_through():
    for text in [
        "told = 1  # told, and it goes on",
        "print('toldest, retell, waveform, heater, look up, apartment, forgo, moved, left')",
        "print('the run resumes; the going rate is on')",
        "errors = {'told_at': 1}",
    ]:
        assert found(check_words, text) == []
