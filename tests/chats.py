"""Templates of chats of the shapes that public models have, and small random models that speak by them."""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.convert import import_

CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}"""
INST = """{% if messages[0]['role'] == 'system' %}
    {% set system, rest = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n', messages[1:] %}
{% else %}
    {% set system, rest = '', messages %}
{% endif %}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('after a user comes an assistant, and then a user again') }}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + (system if loop.first else '') + message['content'] | trim + ' [/INST]' -}}
    {% else %}
        {{- ' ' + message['content'] | trim + ' ' + eos_token -}}
    {% endif %}
{% endfor %}"""
TURNS = """{{ bos_token }}
{%- set seen = namespace(users=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{ raise_exception("there is no role 'system'") }}{% endif %}
    {%- if message.role not in ['user', 'assistant'] %}{% continue %}{% endif %}
    {%- set seen.users = seen.users + (1 if message.role == 'user' else 0) %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<turn>' + role + '\\n' }}{% generation %}{{ message.content | trim }}{% endgeneration %}{{ '</turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\\n' + '#' ~ seen.users ~ '\\n' }}{% endif %}"""
CALLS = """{%- if tools %}
{{- '<|im_start|>system\\nFunctions:\\n' }}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}
{{- '}\\n</tool>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
JSON = """{{ strftime_now('%Y') }} {{ {'<b>': messages, 'é': 1} | tojson(indent=1) }}
{% for m in messages %}{{ m | tojson }}{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}
{{ dict(a=1).items() | list }}{{ unknown_to_all }}"""
TEXTS = ["The cat sat on the mat.", "user assistant system model INST SYS You help", 'Why? "É" is <b> & it\'s 2024\n\n']


def tokenizer(kind: str) -> Any:
    """One of theirs: bytes (as GPT-2 has them), pieces after a space (as Llama), or one before each text."""
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<turn>", "</turn>"]
    rust = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=kind != "bytes"))
    letters = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else [f"<0x{i:02X}>" for i in range(256)]
    if kind == "bytes":
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        rust.decoder = decoders.ByteLevel()
    else:
        first = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        rust.decoder = decoders.Sequence(first)
        rust.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    more = special + ([] if kind == "bytes" else letters)
    size = len(more) + (len(letters) if kind == "bytes" else 60) + 40
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=more,
        initial_alphabet=letters if kind == "bytes" else [],
        show_progress=False,
    )
    rust.train_from_iterator(TEXTS * 3, trainer)
    about = json.loads(rust.to_str())
    about["added_tokens"] = [token for token in about["added_tokens"] if token["content"] in special]
    rust = tokenizers.Tokenizer.from_str(json.dumps(about))
    if kind == "before":
        rust.pre_tokenizer = None
        rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    rust.add_tokens([AddedToken("<tool>", normalized=False)])
    if kind != "bytes":
        rust.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    marks = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"} if kind == "bytes" else {}
    marks = marks or {"bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=rust, unk_token="<unk>", **marks)


def talker(folder: Path, kind: str, template: str | None, **changes: Any) -> tuple[Any, Path]:
    """A random model that speaks by a template: their tokenizer, and our directory."""
    theirs = tokenizer(kind)
    theirs.chat_template = template
    torch.manual_seed(2)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": theirs.bos_token_id, "eos_token_id": theirs.eos_token_id, "pad_token_id": 0}
    settings = {"vocab_size": len(theirs), "max_position_embeddings": 256, "initializer_range": 0.5}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **ids, **settings, **changes}))
    model.save_pretrained(folder / "theirs")
    theirs.save_pretrained(folder / "theirs")
    import_(folder / "theirs", folder / "ours")
    return theirs, folder / "ours"
