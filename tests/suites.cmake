# Registers each suite of a test program with ctest: starting a program that links libtorch costs a third of a second,
# too much for every single test. So a suite that skips one of its tests (support/main.cpp) counts as not run: such tests have
# suites of their own. Included by tests/CMakeLists.txt; runs itself with -P once a program is linked.

if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND "${PROGRAM}" --gtest_list_tests OUTPUT_VARIABLE tests COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "(^|\n)[^ \n][^ \n]*\\." suites "${tests}")
  set(lines "")
  foreach(suite ${suites})
    string(REGEX REPLACE "[\n.]" "" suite "${suite}")
    if(LOCKED AND suite MATCHES "${LOCKED}")  # first, because only one of them runs at a time
      set(locked "RESOURCE_LOCK deadlines COST 100")
    else()
      set(locked "COST 0")
    endif()
    string(APPEND lines "add_test(\"${ROOM}.${suite}\" \"${PROGRAM}\" \"--gtest_filter=${suite}.*\")\n"
      "set_tests_properties(\"${ROOM}.${suite}\" PROPERTIES ${locked} SKIP_RETURN_CODE 77)\n")
  endforeach()
  file(WRITE "${LIST}" "${lines}")
  return()
endif()

# shardwise_test_suites(comm REGEX): the suites of comm_test. Of those that match REGEX, in all rooms, one runs at a time.
function(shardwise_test_suites room locked)
  set(list "${CMAKE_CURRENT_BINARY_DIR}/${room}_suites.cmake")
  add_custom_command(TARGET ${room}_test POST_BUILD VERBATIM
    COMMAND ${CMAKE_COMMAND} "-DPROGRAM=$<TARGET_FILE:${room}_test>" -DROOM=${room} "-DLOCKED=${locked}"
      "-DLIST=${list}" -P "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/suites.cmake")
  # A program that was never linked counts as a failed test, not as none.
  file(WRITE "${list}.in"
    "if(EXISTS \"${list}\")\n  include(\"${list}\")\nelse()\n  add_test(${room} ${room}_test_is_not_built)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${list}.in")
endfunction()
