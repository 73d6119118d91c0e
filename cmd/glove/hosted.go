package main

import (
	"os"
	"path/filepath"

	"gloved.dev/cmd/internal/ui"
)

// glovedCommand is the program, with its leading arguments, that glove starts as gloved:
// the one given, else the gloved beside glove, else glove itself in that role, so that a
// clean checkout needs nothing installed.
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
	if beside := filepath.Join(filepath.Dir(self), "gloved"); executable(beside) == nil {
		return []string{beside}, nil
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
