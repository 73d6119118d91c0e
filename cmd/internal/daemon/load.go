package daemon

// LoadConfig reads a configuration file as gloved --config would, and applies every rule
// between its members. Nothing that it names is opened.
func LoadConfig(path string) (Options, error) {
	options, err := loadConfig(path)
	if err != nil {
		return Options{}, err
	}
	return options, options.check(path)
}
