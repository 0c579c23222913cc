// The headers that nearly every source of the upper rooms needs; none of ours, so that it is compiled once.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>
