"""The fields of requests: OpenAI's, with vLLM's spellings of what OpenAI does not have, and llama.cpp's as aliases.

Fields that change the text and are not served here are refused by name. Fields that nobody knows are ignored, and the
answer's header says so: clients send plenty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from foretoken.errors import cut, quoted
from foretoken.serve.errors import NAME, refused

MOST_STOPS = 16
_Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
_Seed: TypeAlias = Annotated[int, Field(ge=-(2**63), lt=2**64)]


def _few(stop: str | list[str] | None) -> str | list[str] | None:
    if isinstance(stop, list) and len(stop) > MOST_STOPS:
        raise ValueError(f"it holds {len(stop)} texts, expected at most {MOST_STOPS}")
    return stop


Stop: TypeAlias = Annotated[
    str | list[str] | None, AfterValidator(_few), Field(description=f"A text, or up to {MOST_STOPS}.")
]


def _kind_of(prompt: Any) -> str:
    """The kind of a prompt, by its first part: to try one kind after the other takes long for a million tokens."""
    first = prompt[0] if isinstance(prompt, list) and prompt else 0
    if not isinstance(prompt, list):
        return "text"
    return "tokens" if not isinstance(first, str | list) else "texts" if isinstance(first, str) else "lists of tokens"


Prompts: TypeAlias = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Tag("texts")]
    | Annotated[list[int], Tag("tokens")]
    | Annotated[list[list[int]], Tag("lists of tokens")],
    Discriminator(_kind_of),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class StreamOptions(_Body):
    """What a stream holds beside the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class StructuredOutputs(_Body):
    """vLLM's forms of a constraint. One of them is given."""

    regex: str | None = None
    choice: Annotated[list[str], Field(max_length=1000)] | None = None
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    grammar: str | None = None


class JsonSchema(_Body):
    """The schema of a `response_format`."""

    name: str = ""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(_Body):
    """The form of the output."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class Prediction(_Body):
    """A text that the output is said to resemble. A lookup searches it for drafts."""

    type: Literal["content"] = "content"
    content: str | list[dict[str, Any]]


class Own(_Body):
    """What only Foretoken has. trace: the stream says of each round what was drafted and what became of it."""

    trace: bool = False


class Sampled(_Body):
    """What every kind of generation takes."""

    model: str | None = Field(None, description="The model's name; it may be left out.")
    temperature: _Number | None = Field(None, description="0: greedy. Left out: as the model's files say, or else 1.")
    top_p: _Number | None = None
    top_k: int | None = Field(None, description="0, or -1 as in vLLM: all tokens.")
    min_p: _Number | None = None
    repetition_penalty: _Number | None = Field(None, description="llama.cpp's repeat_penalty is taken, too.")
    presence_penalty: _Number | None = None
    frequency_penalty: _Number | None = None
    logit_bias: dict[str, _Number] | None = None
    seed: _Seed | None = None
    stop: Stop = None
    stop_token_ids: Annotated[list[int], Field(max_length=256)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = Field(
        None, description="One of regex, choice, json, json_object, grammar."
    )
    return_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    prediction: Prediction | None = Field(None, description="A text that the output resembles: a lookup searches it.")
    cache_prompt: bool | None = Field(None, description="false: read the whole prompt, whatever was read before.")
    request_id: Annotated[str, Field(pattern=rf"^{NAME}$")] | None = None
    draft: str | None = Field(
        None, description="none: plain decoding. Or the name of a level of the server's draft, at which drafts begin."
    )
    foretoken: Own | None = Field(None, description="trace: the stream says what each round drafted.")

    @property
    def whole_prompt(self) -> bool:
        """Whether all of the prompt counts, however long it is."""
        return self.truncate_prompt_tokens in (None, -1)

    @model_validator(mode="before")
    @classmethod
    def _under_our_names(cls, given: Any) -> Any:
        return renamed(given) if isinstance(given, dict) else given


class CompletionBody(Sampled):
    """`/v1/completions`."""

    prompt: Prompts
    max_tokens: int | None = Field(
        None,
        description="16, if it is left out; -1, as in llama.cpp: as many as there is room for. n_predict is taken.",
    )
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class ChatBody(Sampled):
    """`/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ResponsesBody(Sampled):
    """`/v1/responses`: its plain core."""

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None


class TokenizeBody(_Body):
    """`/tokenize`: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False


class DetokenizeBody(_Body):
    """`/detokenize`."""

    model: str | None = None
    tokens: list[int]


_ALIASES = {
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "n_probs": "logprobs",
    "return_tokens": "return_token_ids",
}
# what changes the text, or what is sent, and is not served: the values that change nothing
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "suffix": (None, ""),
    "best_of": (None, 1),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1, 1.0),
    "min_tokens": (None, 0),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "allowed_token_ids": (None, []),
    "bad_words": (None, []),
    "logits_processors": (None, []),
    "prompt_embeds": (None,),
    "chat_template": (None,),
    "documents": (None, []),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "grammar": (None, ""),
    "json_schema": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "typical_p": (None, 1, 1.0),
    "mirostat": (None, 0),
    "dry_multiplier": (None, 0, 0.0),
    "xtc_probability": (None, 0, 0.0),
    "dynatemp_range": (None, 0, 0.0),
    "samplers": (None,),
    "previous_response_id": (None,),
    "conversation": (None,),
    "background": (None, False),
    "prompt_cache_retention": (None,),
    "truncation": (None, "disabled"),
    "lora": (None, []),
    "cache_salt": (None, ""),
    "reasoning_effort": (None,),
    "top_n_sigma": (None, -1, -1.0),
    "repeat_last_n": (None, -1),
    "include": (None, []),
}
_FORMS = frozenset(("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"))
# what is taken and changes nothing here
_TAKEN = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "priority"),
        *("parallel_tool_calls", "id_slot", "timings_per_token", "return_progress"),
        *("max_tool_calls",),
    )
)


def renamed(given: dict[str, Any]) -> dict[str, Any]:
    """Fields under vLLM's names, and without those that change nothing. Raises ServeError for those that would change
    the text and are not served."""
    found = dict(given)
    for alias, name in _ALIASES.items():
        if alias in found and name not in found:
            found[name] = found.pop(alias)
    if found.get("top_k") == -1:
        found["top_k"] = 0
    for name, harmless in _REFUSED.items():
        if name in found and not any(found[name] is each or found[name] == each for each in harmless):
            instead = "use structured_outputs" if name in _FORMS else "leave it out"
            raise refused(name, f"{name} is {quoted(found[name])}, and is not served here; {instead}")
    return {name: value for name, value in found.items() if name not in _REFUSED}


def ignored(body: BaseModel) -> list[str]:
    """The names of the fields that nobody knows."""
    return sorted(cut(name) for name in body.model_extra or {} if name not in _TAKEN)
