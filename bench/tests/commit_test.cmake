# cmake -DSCRIPT=write_commit.cmake -DFOLDER=... -P commit_test.cmake: sources that git does not know, as those of a release are.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/sources)
execute_process(COMMAND ${CMAKE_COMMAND} -DSOURCE=${FOLDER}/sources -DOUTPUT=${FOLDER}/commit.cpp -P ${SCRIPT} RESULT_VARIABLE status)
file(READ ${FOLDER}/commit.cpp written)
if(NOT status EQUAL 0 OR NOT "${written}" MATCHES "build_commit = \"unknown\";")
  message(FATAL_ERROR "exit status ${status}, expected the commit \"unknown\" in:\n${written}")
endif()
