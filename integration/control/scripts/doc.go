// Package scripts runs command lines of the real gloved and glove from txtar scripts: what
// they print, how they end, and what they refuse.
//
// Its noun is the script (testdata/script): a story a user could type, with the files it
// needs. It is not for the protocol itself, which golden transcripts hold, nor for what
// takes more than one connection, which package control shows.
package scripts
