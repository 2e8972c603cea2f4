"""Whether what an engine says of its step answers what it was asked."""

from collections.abc import Sequence

from loadslice.backends.language import messages as m


def fault_of(said: m.Stepped, asked: Sequence[tuple[int, int, bool]], vocabulary: int) -> str:
    """Why an answer is none; empty: it is one.

    An engine of whose step this is true has mixed up what it computes: nothing that it says is to be believed.

    Args:
        said: By the engine.
        asked: Rows of the step, as `messages.Step` has them.
        vocabulary: Tokens that there are.
    """
    told = [*(one.row for one in said.drawn), *said.late, *(row for row, _ in said.lost)]
    wanted = {row for row, _, samples in asked if samples}
    if len(set(told)) < len(told):
        return "it answers twice for one sequence"
    if set(told) != wanted:
        more = len(set(told) - wanted)
        return f"it answers for {len(wanted & set(told))} of {len(wanted)} sequences, and for {more} others"
    for one in said.drawn:
        if not 0 <= one.token < vocabulary:
            return f"its token {one.token} is not among the {vocabulary} that there are"
    return ""
