"""Writes cases.json: what Jinja2, set up as HF transformers does, renders for each template and conversation.

python3 -m venv venv && venv/bin/pip install jinja2 && venv/bin/python generate.py
"""

import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = 1_721_995_200  # 26 July 2024, 12:00 UTC


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(line)

    def _keep(self, caller):
        return caller()


def compile_template(source):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return environment.from_string(source)


def message(role, content, **fields):
    return {"role": role, "content": content, **fields}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a place; <b>\"quotes\"</b> & 'more', é 日本.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "description": "", "parameters": {}, "strict": True}},
]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich\n\"", "days": 2, "exact": 1.5, "big": 1e20, "off": None, "on": True, "list": [], "map": {}}}}

CONVERSATIONS = {
    "one": [message("user", "Hi")],
    "system": [message("system", " Be brief.\n"), message("user", "  Why is the sky blue?\n\n")],
    "turns": [
        message("system", "S"),
        message("user", "1+1?"),
        message("assistant", "<think>\nhm\n</think>\n\n 2 "),
        message("user", "Ünïcode 日本 🕯️ \t\\ \" ' < > &"),
        message("assistant", ""),
        message("user", ""),
    ],
    "answered": [message("user", "a"), message("assistant", "<think>\nx\n</think>\nb")],
    "call": [
        message("user", "Weather?"),
        message("assistant", "", tool_calls=[CALL]),
        message("tool", "{\"sun\": 1}", tool_call_id="abcdefghi"),
        message("assistant", "Sunny."),
        message("user", "Thanks"),
    ],
    "calls": [
        message("user", "Weather?"),
        message("assistant", "Let me see.", tool_calls=[CALL, CALL], reasoning_content="two calls"),
        message("tool", "sun", tool_call_id="abcdefghi"),
        message("tool", "rain", tool_call_id="abcdefghi"),
    ],
    "parts": [message("user", [{"type": "text", "text": " a "}, {"type": "image"}, {"type": "text", "text": "b"}])],
    "wrong order": [message("assistant", "a"), message("assistant", "b")],
    "foreign role": [message("user", "a"), message("critic", "b")],
    "skip and stop": [message("skip", "a"), message("user", "b"), message("stop", "c"), message("user", "d")],
    "tools in system": [message("system", "S", tools="[]"), message("user", "u")],
    "null": [message("user", "a"), message("assistant", None, tool_calls=[CALL]), message("tool", "r", tool_call_id="abcdefghi")],
}
SETTINGS = [
    {},
    {"tools": TOOLS},
    {"add_generation_prompt": False},
    {"variables": {"enable_thinking": False, "tools_in_user_message": False, "date_string": "today"}, "tools": TOOLS},
    {"documents": [{"title": "one", "text": "a\nb"}, {"title": "two é", "text": "c"}]},
]


def cases(source, name):
    template = compile_template(source)
    for conversation, messages in CONVERSATIONS.items():
        for settings in SETTINGS:
            case = {"template": name, "conversation": conversation, "add_generation_prompt": True, **settings}
            values = {
                "messages": messages,
                "tools": settings.get("tools"),
                "documents": settings.get("documents"),
                "add_generation_prompt": case["add_generation_prompt"],
                "bos_token": "<bos>",
                "eos_token": "<eos>",
                **settings.get("variables", {}),
            }
            try:
                case["text"] = template.render(**values)
            except jinja2.exceptions.TemplateError as error:
                if type(error) is jinja2.exceptions.TemplateError:
                    case["raised"] = str(error)
                else:
                    case["fails"] = True
            except (TypeError, ValueError):
                case["fails"] = True
            yield case


def main(templates, out):
    found = [case for name, source in templates.items() for case in cases(source, name)]
    used = {
        "now": NOW,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "conversations": CONVERSATIONS,
        "cases": found,
    }
    out.write_text(json.dumps(used, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(len(found), "cases,", sum("text" in case for case in found), "rendered")


if __name__ == "__main__":
    main({path.stem: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.jinja"))}, HERE / "cases.json")
