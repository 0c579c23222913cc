// Carries the precompiled header; see pch.cmake.
