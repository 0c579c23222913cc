// For test programs that derive from autograd's functions or c10d's classes.
#pragma once
#include "cmake/pch/c10d.h"
#include "cmake/pch/test.h"
