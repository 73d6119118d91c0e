package main

import (
	"os"
	"path/filepath"

	"gloved.dev/cmd/internal/ui"
)

// glovedCommand is the program, with its leading arguments, that glove starts as gloved:
// the one given, else glove itself in that role. It is never a gloved that happens to
// lie beside glove or in the PATH: that may be another build, whose protocol lacks what
// this glove asks for. What glove starts by itself is always of its own build; whom it
// connects to says at initialize which build it is (see skewed).
func (a *app) glovedCommand(given string) ([]string, error) {
	if given != "" {
		path, err := filepath.Abs(given)
		if err == nil {
			err = executable(path)
		}
		if err != nil {
			return nil, ui.Fail("gloved_not_found", "--gloved: "+err.Error(), "leave --gloved out to use the built-in one")
		}
		return []string{path}, nil
	}
	self, err := a.self()
	if err != nil {
		return nil, ui.Fail("gloved_not_found", "cannot tell where glove itself is: "+err.Error(), "name a gloved with --gloved")
	}
	return []string{self, serveWord}, nil
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return &os.PathError{Op: "run", Path: path, Err: os.ErrPermission}
	}
	return nil
}
