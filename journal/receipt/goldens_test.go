package receipt

import "gloved.dev/internal/digest"

func sha(s string) string { return digest.SHA256Hex([]byte(s)) }

const (
	goldenFull        = "b37824fe201054b8272a3617d06bca34aa29d5f7a0e6e9ffc2417a9e60c6fa8d"
	goldenRemote      = "0aa1b8407a6ae59ca0114da2de3739d8456e8edbd18f08217149f884da4d165b"
	goldenSignaled    = "b01d8fc0882d683b30fcef9313ac1e0cea980b21eb5dfe472d82023c55e1b5a6"
	goldenRefinement  = "f2248fd47b34f0ffaf50840f5c0823ab7c70b3a499f243dd47c1dbe51d112096"
	goldenConfinement = "3097bc4d0386efc229e592a954470dbd93aef3a535a03590c2b73ad05fccf4c7"
)
