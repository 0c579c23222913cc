// --activations, the one flag of quantization that asks the processor.
#include <c10/util/Exception.h>

#include "shardwise/base/isa.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/quantization_flags.h"
#include "shardwise/quant/product.h"

namespace shardwise::cli {

void set_activations_(std::optional<config::Quantization>& q, const std::string& command,
                      const std::string& activations) {
  check_choice(command, "--activations", activations, {"precise", "int8"});
  if (activations == "precise") return;
  TORCH_CHECK_VALUE(q, command, ": --activations int8 needs quantized weights; got none [SW0717]");
  TORCH_CHECK_VALUE(quant::can_round_activations(), command,
                    ": --activations int8 needs a processor with AVX-512 VNNI; got ",
                    base::name_of(base::best_isa()), " [SW0718]");
  q->int8_activations = true;
}

}  // namespace shardwise::cli
