// Carries a precompiled header; see pch.cmake.
