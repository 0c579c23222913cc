// For test programs.
#pragma once
#include <gtest/gtest.h>

#include "cmake/pch/tensor.h"
