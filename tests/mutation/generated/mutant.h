// The switch of the mutants that a machine made (mutants.py).
#pragma once

namespace shardwise {

/// True if $SHARDWISE_MUTANT is `number`. Notes in the file $SHARDWISE_REACHED that this mutant's place ran.
bool mutant(int number);

}  // namespace shardwise
