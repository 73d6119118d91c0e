package main

import (
	"path/filepath"

	"gloved.dev/cmd/internal/ui"
)

// userDir is one of the user's glove directories: the XDG variable when it holds an
// absolute path (the specification says to ignore others), else the usual place in HOME.
func (a *app) userDir(variable, fallback string) (string, error) {
	if base := a.getenv(variable); filepath.IsAbs(base) {
		return filepath.Join(base, "glove"), nil
	}
	home := a.getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", ui.Fail("no_home", "HOME is not set to an absolute path", "set HOME, or "+variable)
	}
	return filepath.Join(home, fallback, "glove"), nil
}

func (a *app) configDir() (string, error) { return a.userDir("XDG_CONFIG_HOME", ".config") }
func (a *app) stateDir() (string, error)  { return a.userDir("XDG_STATE_HOME", ".local/state") }
