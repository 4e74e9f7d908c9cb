# SPDX-License-Identifier: Apache-2.0
"""Stop strings: found in text that comes piece by piece, and never shown.

The match that is complete first counts, of those complete at the same character the longest; so the result
does not depend on how the text was cut. What may be the beginning of a match is held back until it is
known.
"""


class StopStrings:
    """Let text through up to the first stop string.

    Parameters
    ----------
    stops : iterable of str
        None of them empty.

    Attributes
    ----------
    found : str or None
        The stop string that was met; nothing is let through from then on.

    Examples
    --------
    >>> stops = StopStrings(["beta"])
    >>> [stops.feed(piece) for piece in ("al", "pha be", "ta ga", "mma")], stops.found
    (['al', 'pha ', '', ''], 'beta')
    """

    def __init__(self, stops):
        self.stops = tuple(stops)
        self.found = None
        self._held = ""

    def feed(self, text: str) -> str:
        """Take more text; return what can be no part of a match."""
        if self.found is not None:
            return ""
        text = self._held + text
        # (end, start) of each string's first match; the smallest is complete first, and begins first.
        matches = [(start + len(stop), start, stop) for stop in self.stops if (start := text.find(stop)) >= 0]
        if matches:
            _, start, self.found = min(matches)
            self._held = ""
            return text[:start]
        kept = self._beginning(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """Return what is still held back: no more text comes."""
        text, self._held = self._held, ""
        return text

    def _beginning(self, text):
        """Length of the longest end of the text that a stop string begins with."""
        longest = max((len(stop) for stop in self.stops), default=0)
        for kept in range(min(longest - 1, len(text)), 0, -1):
            end = text[len(text) - kept :]
            if any(stop.startswith(end) for stop in self.stops):
                return kept
        return 0


class Text:
    """The text of one row while its ids come.

    Parameters
    ----------
    tokenizer : Tokenizer
    stops : iterable of str
    """

    def __init__(self, tokenizer, stops=()):
        self._decoder = tokenizer.stream_decoder()
        self._stops = StopStrings(stops)
        self._pieces = []
        self._taken = 0

    @property
    def found(self) -> str | None:
        """The stop string that was met."""
        return self._stops.found

    def feed(self, token: int) -> None:
        """Take one more id."""
        self._pieces.append(self._stops.feed(self._decoder.feed([token])))

    def finish(self) -> None:
        """No more ids come: let go what was held back, an incomplete character as U+FFFD."""
        self._pieces += [self._stops.feed(self._decoder.finish()), self._stops.finish()]

    def take(self) -> str:
        """Return the text that has come since the last time."""
        piece = "".join(self._pieces[self._taken :])
        self._taken = len(self._pieces)
        return piece

    def __str__(self):
        return "".join(self._pieces)
