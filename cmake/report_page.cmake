# The page of `shardwise report --out` as a header: page.html with the style and the scripts beside it.

set(_page_parts "${PROJECT_SOURCE_DIR}/shardwise/cli/report_page")
function(_read_page_part result)
  set(text "")
  foreach(name ${ARGN})
    file(READ "${_page_parts}/${name}" part)
    string(APPEND text "${part}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_page_parts}/${name}")
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()
_read_page_part(_page page.html)
_read_page_part(_page_style page.css)
_read_page_part(_page_script charts.js page.js)
string(REPLACE "{{style}}" "${_page_style}" _page "${_page}")
string(REPLACE "{{script}}" "${_page_script}" _page "${_page}")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/shardwise/cli/report_page.h" @ONLY CONTENT
  "#pragma once\nconstexpr char kReportPage[] = R\"page(@_page@)page\";\n")
