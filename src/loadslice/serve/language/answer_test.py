"""What is told beside an answer's text: probabilities of its tokens, where they stand, and what was counted."""

from types import SimpleNamespace
from typing import Any

from loadslice.backends.language.messages import Drawn, Sampling
from loadslice.serve.language.answer import Answer, Choice
from loadslice.serve.language.request import LanguageRequest
from loadslice.spec.outcome import Outcome, Reason

PIECES = [b"<end>", b"Hi", b" \xf0\x9f", b"\x8e\x89", b"!", b"?"]
WORDS: Any = SimpleNamespace(pieces=PIECES, specials=frozenset({0}))


def choice(likeliest: int) -> Choice:
    grown = Choice(0, WORDS, (), (0,), likeliest)
    for token in (1, 2, 3, 4):
        grown.take(Drawn(0, 0, token, -1.5, ((5, -0.5), (token, -1.5))))
    grown.finish()
    return grown


def test_probabilities_of_text_say_where_each_token_stands_and_which_was_drawn() -> None:
    grown = choice(1)
    assert "".join(grown.text) == "Hi \U0001f389!"
    said = grown.logprobs(grown.drawn, chat=False)
    assert said is not None
    assert said["tokens"] == ["Hi", r"bytes:\x20\xf0\x9f", r"bytes:\x8e\x89", "!"]
    assert said["text_offset"] == [0, 2, 3, 4]
    assert said["top_logprobs"][0] == {"?": -0.5, "Hi": -1.5}
    last = grown.logprobs(grown.drawn[3:], chat=False)
    assert last is not None
    assert last["text_offset"] == [4]


def test_no_more_of_the_likeliest_are_told_than_were_asked_for() -> None:
    for likeliest in (0, 1, 2):
        grown = choice(likeliest)
        chat = grown.logprobs(grown.drawn, chat=True)
        assert chat is not None
        assert [len(one["top_logprobs"]) for one in chat["content"]] == [likeliest] * 4
    text = choice(0).logprobs(choice(0).drawn[:1], chat=False)
    assert text is not None
    assert text["top_logprobs"] == [{"Hi": -1.5}]


def test_a_server_that_stops_says_so_and_never_that_the_client_has_gone() -> None:
    for outcome, reason in ((Outcome.REJECTED, Reason.DRAINING), (Outcome.CANCELLED, Reason.CLIENT_GONE)):
        replies: list[Any] = []
        one = choice(0)
        one.request = LanguageRequest([1], 4, Sampling(), one.take, lambda: None, lambda _: None)
        one.request.outcome, one.request.reason = outcome, reason
        answer_of([one], SimpleNamespace(reply=replies.append)).ended(one)
        assert replies[0].status == 503
        assert b"the server is stopping" in replies[0].body


def answer_of(choices: list[Choice], connection: Any = None, choices_each: int = 1) -> Answer:
    return Answer(
        connection,
        identity="i",
        model="m",
        created_s=0,
        choices=choices,
        choices_each=choices_each,
        chat=False,
        stream=False,
        usage=False,
        token_ids=False,
        engine_names=["e"],
        done=lambda _: None,
    )


def test_usage_counts_every_prompt_once_whatever_the_number_of_its_answers() -> None:
    choices = []
    for prompt in ([1, 2, 3], [1]):
        for _ in range(2):
            one = choice(0)
            one.request = LanguageRequest(prompt, 4, Sampling(), one.take, lambda: None, lambda _: None)
            one.request.produced, one.request.hit = [1, 2], 1
            choices.append(one)
    answer = answer_of(choices, choices_each=2)
    counts = answer._usage_counts()
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == (4, 8, 12)
    assert counts["prompt_tokens_details"] == {"cached_tokens": 2}
