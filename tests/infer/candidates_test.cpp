// The choice over ranks against the same choice from the whole row.
#include "shardwise/infer/candidates.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace shardwise::infer::candidates_test {
namespace {

using Ids = std::vector<int64_t>;
using testing::on_ranks;

/// What every rank chooses from its columns of `logits` [n, v].
std::vector<std::vector<Choice>> chosen(const at::Tensor& logits, const std::vector<Due>& due, int ranks) {
  std::vector<std::vector<Choice>> choices(ranks);
  on_ranks(ranks, [&](const comm::Group& group) {
    const auto vocab = base::Split::even("vocab", logits.size(1), group.size());
    const base::Range own = vocab.range(group.rank());
    choices[group.rank()] = choose_tokens(logits.narrow(1, own.begin, own.size()), vocab, due, group);
  });
  return choices;
}

/// The logits with the penalty, written out.
std::vector<double> penalized(const at::Tensor& row, const Due& due) {
  std::vector<double> logits;
  for (int64_t id = 0; id < row.size(0); ++id) {
    double logit = row[id].item<double>();
    const bool is_old = std::find(due.text->begin(), due.text->end(), id) != due.text->end();
    if (is_old) logit *= logit > 0 ? 1 / due.sampling.repetition_penalty : due.sampling.repetition_penalty;
    logits.push_back(logit);
  }
  return logits;
}

int64_t best_of(const std::vector<double>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

TEST(ChooseTokens, TakesTheBestOfAllRanks) {
  const Ids text{0, 3, 3, 9}, other{1};
  for (const int64_t v : {5, 17, 64}) {
    const at::Tensor logits =
        testing::random_tensor({2, v}, /*seed=*/static_cast<uint64_t>(v), at::kDouble) * 3;
    for (const double penalty : {1.0, 4.0}) {
      const std::vector<Due> due{{&text, {.repetition_penalty = penalty}, true}, {&other, {}, true}};
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (const std::vector<Choice>& choices : chosen(logits, due, ranks)) {
          for (int64_t i = 0; i < 2; ++i) {
            const int64_t expected = best_of(penalized(logits[i], due[i]));
            EXPECT_EQ(choices[i].id, expected);
            EXPECT_NEAR(choices[i].logprob, logits[i].log_softmax(0)[expected].item<double>(), 1e-12);
          }
        }
      }
    }
  }
}

// Few candidates gathered or all of them: the same draw.
TEST(ChooseTokens, DrawsTheSameHoweverTheVocabularyIsCut) {
  const Ids text{2, 5};
  const at::Tensor logits = testing::random_tensor({1, 23}, /*seed=*/4, at::kDouble) * 2;
  for (const Sampling sampling :
       {Sampling{.temperature = 1, .top_k = 6, .top_p = 0.9, .repetition_penalty = 1.3},
        Sampling{.temperature = 0.7, .top_p = 0.8}, Sampling{.temperature = 2, .min_p = 0.1},
        Sampling{.temperature = 1, .top_k = 22}}) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      Due due{&text, sampling};
      due.sampling.seed = seed;
      Candidates whole{{}, penalized(logits[0], due)};
      for (int64_t id = 0; id < 23; ++id) whole.ids.push_back(id);
      const int64_t expected = choose_token(whole, due.sampling, /*position=*/2);
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (const auto& choices : chosen(logits, {due}, ranks)) EXPECT_EQ(choices[0].id, expected);
      }
    }
  }
}

TEST(ChooseTokens, EqualLogitsGiveTheLowestIdWhicheverRankHasIt) {
  const Ids text{0};
  const at::Tensor logits = at::tensor(std::vector<double>{1, 3, 2, 3, 3, 0}).view({1, 6});
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const auto& choices : chosen(logits, {{&text, {}}}, ranks)) EXPECT_EQ(choices[0].id, 1);
  }
}

// Whichever rank holds it, every rank says so; none waits for one that has left.
TEST(ChooseTokens, NaNOnOneRankIsAnErrorOnAll) {
  const Ids text{0, 1};
  for (const Sampling sampling :
       {Sampling{}, Sampling{.temperature = 1}, Sampling{.temperature = 1, .top_k = 2}}) {
    for (const int64_t place : {0, 7}) {
      at::Tensor logits = testing::random_tensor({1, 8}, /*seed=*/1, at::kDouble);
      logits[0][place] = NAN;
      on_ranks(2, [&](const comm::Group& group) {
        const auto vocab = base::Split::even("vocab", 8, 2);
        const at::Tensor own = logits.narrow(1, vocab.range(group.rank()).begin, 4);
        EXPECT_EQ(test::error_text<c10::Error>([&] {
                    choose_tokens(own, vocab, {{&text, sampling}}, group);
                  }),
                  "generate: logits must be numbers; got NaN at position 2");
      });
    }
  }
}

// A rank without vocabulary, and logits of −inf, which can never be chosen.
TEST(ChooseTokens, LeavesOutWhatCannotBeChosen) {
  const Ids text{0};
  const double none = -std::numeric_limits<double>::infinity();
  const at::Tensor logits = at::tensor(std::vector<double>{none, -4, none}).view({1, 3});
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const Sampling sampling :
         {Sampling{}, Sampling{.temperature = 1, .top_k = 2}, Sampling{.temperature = 1}}) {
      for (const auto& choices : chosen(logits, {{&text, sampling, true}}, ranks)) {
        EXPECT_EQ(choices[0].id, 1);
        EXPECT_NEAR(choices[0].logprob, 0, 1e-15);
      }
    }
  }
}

}  // namespace
}  // namespace shardwise::infer::candidates_test
