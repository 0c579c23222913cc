#include "shardwise/text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "shardwise/text/chat_renderer.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::chat_template_test {
namespace {

using test::contains, test::error_text, test::TemporaryDirectory;

const OrderedJson kHello = {{{"role", "user"}, {"content", "hello"}}};

std::shared_ptr<const OrderedJson> json(const std::string& text) {
  return std::make_shared<OrderedJson>(OrderedJson::parse(text));
}

std::string render(const std::string& jinja, const OrderedJson& messages = kHello,
                   const ChatOptions& options = {}) {
  const TemporaryDirectory directory;
  directory.put("chat_template.jinja", jinja);
  return ChatTemplate::load(directory.path()).render(messages, options);
}

/// Returns the error of rendering `jinja`, without the file's directory.
std::string render_error(const std::string& jinja, const OrderedJson& messages = kHello,
                         const ChatOptions& options = {}) {
  const std::string text = error_text([&] { render(jinja, messages, options); });
  return text.substr(
      text.find("chat_template.jinja") == std::string::npos ? 0 : text.find("chat_template.jinja"));
}

bool has_python() {
  return contains(test::contents("/proc/self/maps"), "libpython");
}

// Must be the first test in this file, since Python stays loaded.
TEST(ChatRenderer, IsLoadedAtTheFirstRendering) {
  const TemporaryDirectory directory;
  directory.put("tokenizer_config.json", R"({"chat_template": "{{ messages[0].content }}"})");
  const ChatTemplate chat = ChatTemplate::load(directory.path());
  EXPECT_FALSE(has_python());
  EXPECT_EQ(chat.render(kHello), "hello");
  EXPECT_TRUE(has_python());
}

// ctest runs each suite in a process of its own, so these threads start Python.
TEST(ChatRendererInThreads, RendersConcurrentFirstRequests) {
  std::vector<std::string> texts(4);
  {
    std::vector<std::jthread> threads;
    for (std::string& text : texts)
      threads.emplace_back([&text] { text = render("{{ messages[0].role }}"); });
  }
  EXPECT_EQ(texts, std::vector<std::string>(4, "user"));
}

// A suite of its own, so Python starts in this environment.
TEST(ChatRendererEnvironment, IgnoresPythonVariables) {
  const TemporaryDirectory directory;
  directory.put("jinja2.py", "raise Exception('not this one')");
  setenv("PYTHONPATH", directory.path().c_str(), /*replace=*/1);
  setenv("PYTHONHOME", "/nowhere", /*replace=*/1);
  EXPECT_EQ(render("fine"), "fine");
  unsetenv("PYTHONPATH");
  unsetenv("PYTHONHOME");
}

TEST(ChatTemplate, KeepsTheOrderOfFields) {
  const auto messages = OrderedJson::parse(R"([{"z": 1, "a": {"y": 2.0, "b": "é"}}])");
  EXPECT_EQ(render("{{ messages[0] | tojson }}", messages), R"({"z": 1, "a": {"y": 2.0, "b": "é"}})");
}

TEST(ChatTemplate, PassesOptionsToTheTemplate) {
  const std::string jinja = "{{ add_generation_prompt }} {{ tools | tojson }} {{ x is defined }} {{ x }}";
  EXPECT_EQ(render(jinja), "True null False ");
  const ChatOptions options{
      .add_generation_prompt = false, .tools = json("[]"), .variables = json(R"({"x": 5})")};
  EXPECT_EQ(render(jinja, kHello, options), "False [] True 5");
}

TEST(ChatTemplate, ReadsSpecialTokens) {
  const TemporaryDirectory directory;
  directory.put("tokenizer_config.json", R"({"chat_template": "", "bos_token": "<s>", "add_bos_token": true,
                                          "eos_token": {"__type": "AddedToken", "content": "</s>"}})");
  const std::map<std::string, std::string> expected{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  EXPECT_EQ(ChatTemplate::load(directory.path()).special_tokens(), expected);
}

TEST(ChatTemplate, ReportsErrorsOfTheTemplate) {
  const std::string rule = "chat_template.jinja: the chat template must accept these messages; got ";
  EXPECT_EQ(render_error("\n{{ raise_exception('no\n' ~ messages[0].role) }}"),
            rule + "line 2, TemplateError: no user");
  EXPECT_EQ(render_error("a\nb {% if %}"),
            rule + "line 2, TemplateSyntaxError: Expected an expression, got 'end of statement block'");
  EXPECT_PRED2(contains, render_error("{{ '%c' % 55296 }}"), "UnicodeEncodeError");  // an unpaired surrogate
  EXPECT_PRED2(contains, render_error("{{ raise_exception('%c' % 55296) }}"), R"(TemplateError: \ud800)");
  EXPECT_PRED2(contains, render_error("{{ ''.__class__.__name__ }}"),
               "SecurityError: access to attribute '__class__'");
  EXPECT_PRED2(contains,
               render_error("{{ x }}", kHello, {.tools = {}, .variables = json(R"({"messages": 1})")}),
               "TypeError");
}

std::string limit_of(const std::string& jinja, const RenderLimits& limits) {
  const OrderedJson request = {{"template", jinja},
                               {"messages", kHello},
                               {"tools", nullptr},
                               {"add_generation_prompt", true},
                               {"variables", OrderedJson::object()}};
  return render_request(request, limits).value("limit", "none");
}

TEST(ChatTemplate, TimeIsLimited) {
  const std::string loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  const std::string folded = "{{ [1] | slice(1000000000) | sum(start=[]) }}";  // while jinja2 compiles
  for (const std::string& slow : {loop, folded}) EXPECT_EQ(limit_of(slow, {.seconds = 0.1}), "time");
  EXPECT_EQ(limit_of("{% for a in range(99) %}{% endfor %}", {.seconds = 1000}), "none");
  EXPECT_EQ(RenderLimits().seconds, 10);  // which is what render() and its error use
  EXPECT_EQ(render("after it"), "after it");
}

TEST(ChatTemplate, MemoryIsLimited) {
  const std::string rule = "must render these messages in 10 s and 256 MiB of memory; it needs more memory";
  for (const char* greedy :
       {"{{ 'x' * 10**10 }}", "{{ '%10000000000d' % 1 }}", "{{ 'x'.center(10**10) }}",
        "{{ 'x' | indent(10**10) }}",
        "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(l=[1]) %}{% for i in range(40) %}{% set n.l = n.l + n.l %}{% endfor %}",
        "{{ [0] * 10**9 }}"}) {
    EXPECT_PRED2(contains, render_error(greedy), rule) << greedy;
    EXPECT_EQ(render("after it"), "after it");
  }
  EXPECT_EQ(limit_of("{{ 'x' * 10**6 }}", {.bytes = 100'000}), "memory");
  EXPECT_EQ(limit_of("{{ 'x' * 10**6 }}", {.bytes = 100'000'000}), "none");
}

TEST(ChatTemplate, TextAndIntegersAreLimited) {
  EXPECT_PRED2(contains, render_error("{{ 'x' * 20000000 }}"), "as at most 16777216 bytes; got 20000000");
  EXPECT_EQ(render("{{ 'x' * 16777216 }}").size(), 16777216u);
  EXPECT_PRED2(contains, render_error("{{ (0).from_bytes('x'.encode(), 'little') }}"), "SecurityError");
  for (const char* large :
       {"{{ 9**(9**9) }}", "{{ ('f' * 20000) | int(base=16) }}", "{{ (10**9999) * (10**9999) }}"})
    EXPECT_PRED2(contains, render_error(large), "OverflowError: integers must have at most 65536 bits");
  EXPECT_EQ(render("{{ 2**10 * 3 }} {{ 2**-1 }} {{ 'ab' * 2 }} {{ 1.5**2 }}"), "3072 0.5 abab 2.25");
}

TEST(ChatTemplate, RejectsInvalidMessages) {
  EXPECT_EQ(render_error("", OrderedJson::object()), "chat template: messages must be a list; got {}");
  EXPECT_EQ(render_error("", OrderedJson::array()), "chat template: messages must not be empty; got none");
  EXPECT_EQ(render_error("", {{{"role", "user"}}, "hello"}),
            R"(chat template: messages[1] must be an object; got "hello")");
  EXPECT_EQ(render_error("", kHello, {.tools = json(R"("x")"), .variables = {}}),
            R"(chat template: tools must be a list; got "x")");
  EXPECT_EQ(render_error("", kHello, {.tools = {}, .variables = json("1")}),
            "chat template: variables must be an object; got 1");
  EXPECT_PRED2(contains, render_error("", {{{"content", "\xff"}}}), "must be UTF-8");
}

TEST(ChatTemplate, RejectsInvalidFiles) {
  const auto load_error = [](const std::string& config) {
    const TemporaryDirectory directory;
    directory.put("tokenizer_config.json", config);
    const std::string text = error_text([&] { ChatTemplate::load(directory.path()); });
    return text.substr(std::min(directory.path().size(), text.size()));
  };
  const std::string file = "/tokenizer_config.json: ";
  EXPECT_PRED2(contains, load_error("{"), file + "must be JSON; got ");
  EXPECT_EQ(load_error("[]"), file + "must be a JSON object; got []");
  EXPECT_EQ(load_error("{}"),
            ": must have a chat template in chat_template.jinja or tokenizer_config.json; got none");
  EXPECT_EQ(load_error(R"({"chat_template": 5})"), file + "chat_template default must be a string; got 5");
  EXPECT_EQ(load_error(R"({"chat_template": [{"name": "x"}]})"),
            file + R"(chat_template must be a list of objects with name and template; got {"name":"x"})");
  EXPECT_EQ(load_error(R"({"chat_template": "", "bos_token": 1})"),
            file + "bos_token must be a string or an AddedToken; got 1");
  const std::string longest(1 << 20, 'x');
  const auto with_template = [](const std::string& text) { return R"({"chat_template": ")" + text + "\"}"; };
  EXPECT_EQ(load_error(with_template(longest + "x")),
            file + "a chat template must have at most 1048576 bytes; got 1048577");
  EXPECT_EQ(load_error(R"({"chat_template": [{"name": "x", "template": ")" + longest + "x\"}]}"),
            file + "a chat template must have at most 1048576 bytes; got 1048577");
  const TemporaryDirectory directory;
  directory.put("tokenizer_config.json", with_template(longest));
  EXPECT_NO_THROW(ChatTemplate::load(directory.path()));
  for (const std::string name : {"chat_template.jinja", "additional_chat_templates/x.jinja"}) {
    directory.put(name, longest);
    EXPECT_NO_THROW(ChatTemplate::load(directory.path()));
    directory.put(name, longest + "x");
    EXPECT_EQ(error_text([&] { ChatTemplate::load(directory.path()); }),
              "read " + directory / name + ": must be at most 1048576 bytes; got 1048577");
    std::filesystem::remove(directory / name);
  }
  std::filesystem::remove(directory / "additional_chat_templates");
  directory.put("additional_chat_templates", "no directory");
  EXPECT_PRED2(contains, error_text([&] { ChatTemplate::load(directory.path()); }),
               "additional_chat_templates must be a readable directory");
}

}  // namespace
}  // namespace shardwise::text::chat_template_test
