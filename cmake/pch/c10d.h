// For rooms that derive from autograd's functions or c10d's classes.
#pragma once
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "cmake/pch/tensor.h"
