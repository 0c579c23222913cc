# The module that renders chat templates: .venv's Python as a library, with shardwise/text/jinja embedded (docs/adr/0011).
# It is loaded at run time; no target links it. pybind11 is the one in torch's wheel.

set(Python3_EXECUTABLE "${SHARDWISE_VENV}/bin/python")
find_package(Python3 3.11 QUIET COMPONENTS Interpreter Development.Embed)
if(NOT Python3_Development.Embed_FOUND)
  message(FATAL_ERROR "python: ${SHARDWISE_VENV} needs its Python as a library with headers (Debian: python3-dev); "
    "run tools/setup")
endif()

set(_jinja "${PROJECT_SOURCE_DIR}/shardwise/text/jinja")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_jinja}/render.py")
file(READ "${_jinja}/render.py" _render_source)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/jinja/shardwise/text/jinja/render_source.h" @ONLY CONTENT
  "constexpr char kRenderSource[] = R\"render.py(@_render_source@)render.py\";\n")

add_library(chat_renderer MODULE "${_jinja}/module.cpp")
target_include_directories(chat_renderer PRIVATE "${PROJECT_BINARY_DIR}/jinja")
target_include_directories(chat_renderer SYSTEM PRIVATE "${TORCH_ROOT}/include")
target_link_libraries(chat_renderer PRIVATE Python3::Python)
target_compile_definitions(chat_renderer PRIVATE SHARDWISE_PYTHON="${Python3_EXECUTABLE}")
set_target_properties(chat_renderer PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")

# renders_chat(TARGET): builds the module with TARGET and defines its path for TARGET's sources.
function(renders_chat target)
  target_compile_definitions(${target} PRIVATE SHARDWISE_CHAT_RENDERER="$<TARGET_FILE:chat_renderer>")
  add_dependencies(${target} chat_renderer)
endfunction()
