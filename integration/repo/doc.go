// Package repo holds the repository to its own rules.
//
// Its nouns are the tree (every Go file of the module, parsed), the rule (a check over the tree with
// the reason it exists), the finding (one place that breaks a rule) and the exemption (a package
// that a rule does not bind, with the reason). The rules run as ordinary tests, so that nobody needs
// a linter installed to learn that an import points upwards, and each is itself tested on a small
// tree that breaks it. The package also runs the commands that the documents show, on a copy of the
// repository, so that what a reader is told to type is what works.
//
// It is not for style that a formatter or a general linter decides; those are in .golangci.yml.
package repo
