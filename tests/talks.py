"""A checkpoint that talks: the embedded model, with a chat template that takes turns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from foretoken.common.source import EMBEDDED

TEMPLATE = """\
{%- for message in messages -%}
  {%- if message.role == 'system' and not loop.first -%}{{ raise_exception('system comes first') }}{%- endif -%}
  {{- '# ' + message.role + '\n' + message.content + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '# assistant\n' -}}{%- endif -%}"""


def talking(folder: Path, template: str | None = TEMPLATE, model: str = "stdlib-1m") -> Path:
    """Such a checkpoint, in a folder that is made."""
    shutil.copytree(EMBEDDED[model], folder)
    config = folder / "tokenizer_config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**content, "chat_template": template}), encoding="utf-8")
    return folder


def written(messages: list[dict[str, str]]) -> str:
    """The talk, up to where the reply begins, as the template writes it."""
    return "".join(f"# {message['role']}\n{message['content']}\n" for message in messages) + "# assistant\n"
