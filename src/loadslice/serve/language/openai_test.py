"""What a body may say: what OpenAI's interface takes is taken, what it refuses is refused, and nothing is dropped."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadslice.serve.language.openai import RequestError, content_of, read_chat, read_text, sampling_of

TEXT: dict[str, Any] = {"model": "m", "prompt": "hello"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    "more",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "seed": 3},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"ignore_eos": True, "min_tokens": 0, "top_k": -1, "repetition_penalty": 1.0, "skip_special_tokens": True},
        {"max_completion_tokens": 5, "stop": None, "n": 1, "response_format": {"type": "text"}},
        {"min_tokens": None},
    ],
)
def test_what_clients_send_is_taken(more: dict[str, Any]) -> None:
    assert read_chat(json.dumps(CHAT | more).encode()).model == "m"


@pytest.mark.parametrize(
    ("more", "parameter"),
    [
        ({"foo": 1}, "foo"),
        ({"top_k": 40}, "top_k"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"seed": 2**90}, "seed"),
        ({"stop": [str(number) for number in range(5000)]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"best_of": 4}, "best_of"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(number): 1 for number in range(301)}}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"echo": True}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_the_interface_refuses_or_this_server_lacks_is_refused_by_name(
    more: dict[str, Any], parameter: str
) -> None:
    with pytest.raises(RequestError) as refused:
        read_text(json.dumps(TEXT | more).encode())
    assert refused.value.parameter == parameter
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("more", "parameter"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages"),
    ],
)
def test_what_would_be_left_out_of_a_conversation_is_refused(more: dict[str, Any], parameter: str) -> None:
    def read() -> None:
        for message in read_chat(json.dumps(CHAT | more).encode()).messages:
            content_of(message)

    with pytest.raises(RequestError) as refused:
        read()
    assert refused.value.parameter == parameter


def test_a_conversation_as_clients_send_it_back_is_taken() -> None:
    said = {
        "role": "assistant",
        "content": "hi",
        "tool_calls": None,
        "function_call": None,
        "refusal": None,
        "audio": None,
    }
    asked = read_chat(json.dumps(CHAT | {"messages": [said], "tool_choice": "auto", "function_call": "none"}).encode())
    assert content_of(asked.messages[0]) == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    ("body", "parameter", "said"),
    [
        (CHAT | {"max_tokens": "many"}, "max_tokens", "'max_tokens': wants a whole number or nothing, not a text"),
        ({"model": "m"}, "messages", "'messages' is missing"),
    ],
)
def test_a_field_of_another_type_is_refused_in_words(body: dict[str, Any], parameter: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_chat(json.dumps(body).encode())
    assert (caught.value.text, caught.value.parameter) == (said, parameter)


def test_choices_of_one_seed_are_not_those_of_the_next() -> None:
    def seeds(seed: int) -> list[int]:
        body = read_text(json.dumps(TEXT | {"seed": seed}).encode())
        return [sampling_of(body, choice=choice, seed=0, logprobs=0, vocabulary=10, end=1).seed for choice in range(8)]

    assert seeds(5) == seeds(5)
    assert len({one for seed in range(-4, 100) for one in seeds(seed)}) == 104 * 8


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_any_bytes_are_a_body_or_a_refusal(raw: bytes) -> None:
    for read in (read_chat, read_text):
        with pytest.raises(RequestError):
            read(raw)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 127))
def test_every_seed_that_is_taken_can_be_said_to_an_engine(seed: int, choice: int) -> None:
    body = read_text(json.dumps(TEXT | {"seed": seed}).encode())
    sampling = sampling_of(body, choice=choice, seed=0, logprobs=0, vocabulary=10, end=1)
    assert -(2**63) <= sampling.seed < 2**64
