import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import org.apache.avro.Schema;
import org.apache.avro.compiler.specific.SpecificCompiler;
import org.apache.avro.generic.GenericData.StringType;

/**
 * Makes a Java class of each schema, as Avro's plugins for Maven and Gradle do.
 *
 * <p>Arguments: a file of schemas by full name, the folder for the sources.
 */
public final class GenerateRecords {
    public static void main(String[] given) throws IOException {
        var folder = new File(given[1]);
        for (var schema : new ObjectMapper().readTree(new File(given[0]))) {
            var compiler = new SpecificCompiler(new Schema.Parser().parse(schema.toString()));
            compiler.setStringType(StringType.String);
            compiler.compileToDestination(null, folder);
        }
    }
}
