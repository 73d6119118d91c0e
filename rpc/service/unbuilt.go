package service

// buildRuntime constructs the session runtime below the materialization root.
func (b *builder) buildRuntime() error {
	if b.MaterializationRoot == "" {
		return nil
	}
	return &UnavailableError{Option: "--materialization-root", Why: "this gloved has no component for it"}
}
