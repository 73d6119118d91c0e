package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/receipt"
)

// receiptPlace finds out where --receipt's path leads: the file to put in place, or, where
// the path is something other than a file (a pipe, /dev/stdout), that to write to as it is.
// Renaming a file over that would take it away from the whole machine.
func receiptPlace(path string) (target string, asIs bool, err error) {
	// What it leads to is asked of the kernel first: /dev/stdout leads to pipe:[1234].
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return path, false, nil
	case err != nil:
		return "", false, err
	case st.IsDir():
		return "", false, errors.New("it is a directory")
	case !st.Mode().IsRegular():
		return path, true, nil
	}
	if target, err = filepath.EvalSymlinks(path); err != nil {
		return path, true, nil //nolint:nilerr // a regular file without a name, such as a descriptor's
	}
	return target, false, nil
}

// checkReceipt fails if a receipt could not be written to path, before there is anything
// to be lost.
func checkReceipt(path string) error {
	target, asIs, err := receiptPlace(path)
	if err == nil && !asIs {
		var f *os.File
		if f, err = os.CreateTemp(filepath.Dir(target), ".glove-receipt-*"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err == nil {
		return nil
	}
	return &ui.Error{Code: "receipt_unwritable", Message: "no receipt can be written to " + path + ": " + reason(err), Err: err,
		Next: "name a file in a directory that you may write to: --receipt FILE"}
}

// reason is what the system said, without the name of a file that nobody asked for.
func reason(err error) string {
	var failure *fs.PathError
	if errors.As(err, &failure) {
		return failure.Err.Error()
	}
	return err.Error()
}

// writeReceipt writes the whole envelope, as canonical JSON; a new file is its owner's only.
func writeReceipt(path string, e *receipt.Envelope) error {
	raw, err := strictjson.Canonical(e)
	if err == nil {
		err = putReceipt(path, append(raw, '\n'))
	}
	if err != nil {
		return ui.Failf("receipt_unwritten", "--receipt: %w", err)
	}
	return nil
}

func putReceipt(path string, raw []byte) error {
	target, asIs, err := receiptPlace(path)
	if err != nil {
		return err
	}
	if asIs {
		f, err := os.OpenFile(target, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(raw)
		return errors.Join(err, f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(target), ".glove-receipt-*")
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), target)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first failure is the one to tell
	}
	return err
}
