"""Tools and conversations for the chat templates under test."""
TOOLS = [
    {"type": "function",
     "function": {"name": "weather", "description": "Says \"how\" the weather is, in °C; <fast> & cheap.",
                  "parameters": {"type": "object",
                                 "properties": {"place": {"type": "string", "description": "A city, 市 or village"},
                                                "days": {"type": "integer", "default": 1},
                                                "units": {"type": "string", "enum": ["metric", "imperial"]}},
                                 "required": ["place"]},
                  "return": {"type": "number"}}},
    {"type": "function",
     "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}},
                  "strict": True, "limit": 1.5, "zero": 0.0, "big": 2**60, "nothing": None}},
]
SYSTEM = {"role": "system", "content": "  You answer briefly.\n"}
QUESTION = {"role": "user", "content": "What is 2 + 2?"}
ANSWER = {"role": "assistant", "content": " It is 4. \n"}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Kraków", "days": 2}}}
SECOND_CALL = {"id": "abcdefgh2", "type": "function", "function": {"name": "now", "arguments": {}}}


def calling(*calls, **fields):
    return {"role": "assistant", **fields, "tool_calls": list(calls)}


CHATS = {
    "question": [QUESTION],
    "system": [SYSTEM, QUESTION],
    "turns": [QUESTION, ANSWER, {"role": "user", "content": "And 3 + 3?"}],
    "system and turns": [SYSTEM, QUESTION, ANSWER, {"role": "user", "content": "And 3 + 3?"},
                         {"role": "assistant", "content": "6"}, {"role": "user", "content": "\tThanks\n\n"}],
    "ends with an answer": [SYSTEM, QUESTION, ANSWER],
    "many turns": [QUESTION, ANSWER] * 6 + [QUESTION],
    "call": [SYSTEM, {"role": "user", "content": "Weather?"}, calling(CALL)],
    "call and answer": [{"role": "user", "content": "Weather?"}, calling(CALL, content=""),
                        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "weather", "content": "21.5"}],
    "call, answer and words": [SYSTEM, {"role": "user", "content": "Weather?"}, calling(CALL, content=None),
                               {"role": "tool", "tool_call_id": "abcdefgh1", "content": "{\"t\": 21.5}"},
                               {"role": "assistant", "content": "It is 21.5 °C."}],
    "two calls": [{"role": "user", "content": "Weather and time?"}, calling(CALL, SECOND_CALL, content="Let me see."),
                  {"role": "tool", "tool_call_id": "abcdefgh1", "content": "21.5"},
                  {"role": "tool", "tool_call_id": "abcdefgh2", "content": "12:00"},
                  {"role": "assistant", "content": "Noon."}, QUESTION],
    "calls spelled otherwise": [QUESTION, calling({"name": "now", "arguments": "{\"a\": 1}"}),
                              {"role": "tool", "content": {"content": [1, 2.0, None, {"b": True}]}}],
    "id too short": [QUESTION, calling({**CALL, "id": "x"})],
    "parts": [{"role": "system", "content": [{"type": "text", "text": "Look well."}]},
              {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is this? "}]},
              {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]}],
    "thinking": [QUESTION, {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nIt is 4."},
                 {"role": "user", "content": "Sure?"},
                 {"role": "assistant", "content": "<think>\nAgain.\n</think>\n\nYes."}],
    "reasoning_content": [QUESTION, {"role": "assistant", "reasoning_content": "Two and two.", "content": "4"}],
    "reasoning": [QUESTION, {"role": "assistant", "content": "4", "reasoning": "Two\nand two."}, QUESTION],
    "thinking field": [QUESTION, {"role": "assistant", "content": "4", "thinking": "Hm.", "reasoning_content": None}],
    "every reasoning field": [QUESTION, {"reasoning": "c", "role": "assistant", "thinking": "b", "content": "4",
                                         "reasoning_content": "a"}],
    "unicode": [{"role": "user", "content": "¿Qué? 你好 🙂 ﬁ \u2028 \u00a0 e\u0301 \U0001f468\u200d\U0001f469 Straße İ"},
                {"role": "assistant", "content": "\u200bзмея\x7f\x01"}],
    "empty strings": [{"role": "system", "content": ""}, {"role": "user", "content": ""},
                      {"role": "assistant", "content": ""}, {"role": "user", "content": " "}],
    "HTML": [{"role": "user", "content": "<b class=\"x\">1 < 2 && 'q'</b> &amp; </s> {{ 1 + 1 }} {% raw %} {# no #}"}],
    "newlines": [{"role": "user", "content": "\r\nfirst\rsecond\n\n\n  third  \v\f"}],
    "long": [{"role": "user", "content": "lorem ipsum " * 300}],
    "extra fields": [{"role": "user", "content": "x", "name": "Ann", "z": 1, "a": [1, [2, {"k": -0.0}]], "nothing": None,
                      "inner": {"stays": None}, "numbers": [1e-7, 1e16, 123456789.125, -(2**63), 2**64 - 1, 1e300]}],
    "no content": [{"role": "user"}],
    "null content": [{"role": "user", "content": None}],
    "wrong roles": [ANSWER, ANSWER],
    "unknown role": [{"role": "critic", "content": "x"}],
    "system at the end": [QUESTION, SYSTEM],
    "number as content": [{"role": "user", "content": 5}],
    "no role": [{"content": "x"}],
}
