// Package approval reads APPROVAL.md, the policy of the approval gate, and says
// what it decides: whether an action of some class needs a person, which, and
// within which budgets.
//
// # The file
//
// A policy is the one YAML block, fenced as "yaml approval-policy", of a
// Markdown file that people read. Parse turns the bytes into a Policy; Read
// takes them from a file in one read, so that the digest people attested, the
// text that was parsed, and the text that decides are the same bytes.
//
// Whatever cannot be understood exactly is no policy: two blocks, a second YAML
// document, a duplicate key, a tag, a directive, an unknown key. A Document
// whose policy failed decides that every class needs a person.
//
// # Nouns
//
// A class is a dotted name of what an action does ("files.write.workspace"). A
// Rule binds a class pattern to an Autonomy. A Resolution is what the policy
// decides for one class, with every rule that took part and the steps that led
// there. A path of the workspace has a class too: Document.ClassOf.
//
// # Not for
//
// It knows nothing of the log: what was attested, asked or spent is
// runtime/gate's. It reads no environment and follows no reference.
package approval
