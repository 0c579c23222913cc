# The module that renders chat templates: Python as a library, with shardwise/text/jinja embedded (docs/adr/0011). It is
# loaded at run time; no target links it. pybind11 is the one in torch's wheel. jinja2 and markupsafe are in
# chat_renderer_packages/ next to the module, so that all can be installed together.

if(SHARDWISE_VENV)
  set(Python3_EXECUTABLE "${SHARDWISE_VENV}/bin/python")
endif()
find_package(Python3 3.11 QUIET COMPONENTS Interpreter Development.Embed)
if(NOT Python3_Development.Embed_FOUND)
  message(FATAL_ERROR "python: ${Python3_EXECUTABLE} needs its Python as a library with headers (Debian: python3-dev); "
    "run tools/setup")
endif()
execute_process(COMMAND "${Python3_EXECUTABLE}" -c
    "import sys, jinja2, markupsafe; print(sys.base_prefix, *jinja2.__path__, *markupsafe.__path__, sep=';')"
  OUTPUT_VARIABLE _python OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _failed)
if(_failed)
  message(FATAL_ERROR "python: ${Python3_EXECUTABLE} needs jinja2 and markupsafe; run tools/setup")
endif()
list(POP_FRONT _python _python_home)
set(SHARDWISE_RENDERER_PACKAGES ${_python})
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/chat_renderer_packages")
foreach(package ${SHARDWISE_RENDERER_PACKAGES})
  get_filename_component(name "${package}" NAME)
  file(CREATE_LINK "${package}" "${PROJECT_BINARY_DIR}/chat_renderer_packages/${name}" SYMBOLIC)
endforeach()

set(_jinja "${PROJECT_SOURCE_DIR}/shardwise/text/jinja")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_jinja}/render.py")
file(READ "${_jinja}/render.py" _render_source)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/jinja/shardwise/text/jinja/render_source.h" @ONLY CONTENT
  "constexpr char kRenderSource[] = R\"render.py(@_render_source@)render.py\";\n")

add_library(shardwise_chat_renderer MODULE "${_jinja}/module.cpp" "${_jinja}/limits.cpp")
target_include_directories(shardwise_chat_renderer PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/jinja")
target_include_directories(shardwise_chat_renderer SYSTEM PRIVATE "${TORCH_ROOT}/include")
target_link_libraries(shardwise_chat_renderer PRIVATE shardwise_flags Python3::Python)
target_compile_definitions(shardwise_chat_renderer PRIVATE SHARDWISE_PYTHON_HOME="${_python_home}")
set_target_properties(shardwise_chat_renderer PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
